/* library_settings.h -- the settings of a codec as a text ("codec=aqsgd bits=4"). Pure. */
#ifndef AQSGD_LIBRARY_SETTINGS_H
#define AQSGD_LIBRARY_SETTINGS_H

#include "aqsgd/codec.h"

/* The defaults of the codec and bits that `text` names, and over them all else that it says. AQ_INVAL names the key;
 * whether the whole can be is aq_codec_config_check's to say. */
enum aq_status aq_library_settings(const char *text, struct aq_codec_config *out);

#endif
