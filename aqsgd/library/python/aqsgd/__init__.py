"""libaqsgd in Python: activation codecs (AQ-SGD) and gradient compressors, over ctypes.

Arrays are contiguous fp32 of host memory: torch tensors, numpy arrays, or anything with a writable buffer. A codec is used from one
thread at a time. What goes wrong is an Error with the library's own line.

    codec = aqsgd.Codec("codec=aqsgd bits=4", rows, columns)
    m = codec.message()                             # of one sample, at each end
    body, flags = codec.encode(a, None, m_out=m)    # first visit: a keyframe; later: codec.encode(a, m, m_out=m)
    codec.decode(body, flags, None, hat, m_out=m)   # the other end, with its own m
"""
import ctypes
import pathlib

__all__ = ["Codec", "Gradient", "Error", "digest", "version", "KEYFRAME", "RAW"]
KEYFRAME, RAW = 1, 2
_NAME = "libaqsgd.so.0"


def _load():
    beside = pathlib.Path(__file__).resolve().parent / _NAME
    library = ctypes.CDLL(str(beside) if beside.exists() else _NAME)
    p, size, u32, u64, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
    for name, result, *arguments in (
            ("version", u32), ("error", ctypes.c_char_p), ("digest", u64, p, size),
            ("codec_open", number, ctypes.c_char_p, u32, u32, u32, ctypes.POINTER(p)), ("codec_close", None, p),
            ("codec_digest", u64, p), ("codec_text", None, p, ctypes.c_char_p, size), ("bound", size, p),
            ("body_bytes", size, p, number), ("message_bytes", size, p),
            ("encode", number, p, p, p, u64, p, size, ctypes.POINTER(size), ctypes.POINTER(u32), p, p),
            ("decode", number, p, p, size, u32, p, p, p),
            ("grad_open", number, ctypes.c_char_p, ctypes.POINTER(u64), u32, ctypes.POINTER(p)), ("grad_close", None, p),
            ("grad_bytes", size, p, u64, u64), ("grad_encode", number, p, u64, u64, p, p, u64, p),
            ("grad_decode", number, p, u64, u64, p, size, ctypes.c_float, number, p)):
        function = getattr(library, "aqsgd_" + name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


class Error(RuntimeError):
    """What the library answered; `status` is its number (1 invalid, 2 no memory, 3 no space, 9 corrupt)."""

    def __init__(self, status):
        super().__init__(_library.aqsgd_error().decode(errors="replace"))
        self.status = status


def _check(status):
    if status != 0:
        raise Error(status)


def _pointer(array, size, what, bytes_of=4):
    """The address of an array of `size` elements; its type and length are looked at, for the library cannot."""
    if array is None:
        return None
    if hasattr(array, "data_ptr"):
        fits = array.device.type == "cpu" and array.is_contiguous() and array.element_size() == bytes_of
        fits = fits and (bytes_of == 1 or array.is_floating_point())
        count, address = array.numel(), array.data_ptr()
    elif hasattr(array, "__array_interface__"):
        fits = array.flags.c_contiguous and array.itemsize == bytes_of and (bytes_of == 1 or array.dtype.kind == "f")
        count, address = array.size, array.ctypes.data
    else:
        view = memoryview(array)
        fits, count = view.contiguous, view.nbytes // bytes_of
        fits = fits and (isinstance(array, bytes) or not view.readonly)
        if isinstance(array, bytes):
            address = ctypes.cast(ctypes.c_char_p(array), ctypes.c_void_p).value
        else:
            address = ctypes.addressof(ctypes.c_char.from_buffer(array)) if fits and count else None
    if not fits or count != size:
        raise ValueError(f"{what}: {size} contiguous {'bytes' if bytes_of == 1 else 'fp32 values'} of host memory are wanted")
    return address


def version():
    return _library.aqsgd_version()


def digest(data):
    return _library.aqsgd_digest(_pointer(data, len(memoryview(data)), "data", 1), len(memoryview(data)))


class Codec:
    """An activation codec for samples of (rows, columns); settings as in aqsgd.h."""

    def __init__(self, settings, rows, columns, threads=1):
        self._codec = ctypes.c_void_p()
        _check(_library.aqsgd_codec_open(settings.encode(), rows, columns, threads, ctypes.byref(self._codec)))
        self.values, self.bound = rows * columns, _library.aqsgd_bound(self._codec)
        self.message_bytes = _library.aqsgd_message_bytes(self._codec)
        self._body = bytearray(self.bound)

    def __del__(self):
        if getattr(self, "_codec", None):
            _library.aqsgd_codec_close(self._codec)
            self._codec = None

    def __str__(self):
        text = ctypes.create_string_buffer(256)
        _library.aqsgd_codec_text(self._codec, text, len(text))
        return text.value.decode()

    @property
    def digest(self):
        """Of what decode depends on: equal at both ends."""
        return _library.aqsgd_codec_digest(self._codec)

    def body_bytes(self, keyframe=False):
        return _library.aqsgd_body_bytes(self._codec, keyframe)

    def message(self):
        """Room for one sample's message."""
        return bytearray(self.message_bytes)

    def encode(self, a, m=None, m_out=None, hat=None, key=0):
        """(body, flags) of the sample; hat is what the other end will have."""
        size, flags = ctypes.c_size_t(), ctypes.c_uint32()
        _check(_library.aqsgd_encode(self._codec, _pointer(a, self.values, "a"), _pointer(m, self.message_bytes, "m", 1), key,
                                     _pointer(self._body, self.bound, "body", 1), self.bound, ctypes.byref(size),
                                     ctypes.byref(flags), _pointer(hat, self.values, "hat"),
                                     _pointer(m_out, self.message_bytes, "m_out", 1)))
        return bytes(self._body[:size.value]), flags.value

    def decode(self, body, flags, m=None, hat=None, m_out=None):
        _check(_library.aqsgd_decode(self._codec, _pointer(body, len(body), "body", 1), len(body), flags,
                                     _pointer(m, self.message_bytes, "m", 1), _pointer(hat, self.values, "hat"),
                                     _pointer(m_out, self.message_bytes, "m_out", 1)))


class Gradient:
    """A gradient compressor ("q4", "sign", "topk" ...) of a flat buffer of tensors with these counts of floats."""

    def __init__(self, name, counts):
        self._grad = ctypes.c_void_p()
        _check(_library.aqsgd_grad_open(name.encode(), (ctypes.c_uint64 * len(counts))(*counts), len(counts),
                                        ctypes.byref(self._grad)))
        self.count = sum(counts)
        self.bytes = _library.aqsgd_grad_bytes(self._grad, 0, self.count)

    def __del__(self):
        if getattr(self, "_grad", None):
            _library.aqsgd_grad_close(self._grad)
            self._grad = None

    def encode(self, x, wire, error=None, step=0):
        """wire (self.bytes long) = C(x + error); error keeps what was lost."""
        _check(_library.aqsgd_grad_encode(self._grad, 0, self.count, _pointer(x, self.count, "x"),
                                          _pointer(error, self.count, "error"), step, _pointer(wire, self.bytes, "wire", 1)))

    def decode(self, wire, out, weight=1.0, add=False):
        """out = weight * decoded, or with add out += weight * decoded."""
        _check(_library.aqsgd_grad_decode(self._grad, 0, self.count, _pointer(wire, self.bytes, "wire", 1), self.bytes, weight,
                                          add, _pointer(out, self.count, "out")))
