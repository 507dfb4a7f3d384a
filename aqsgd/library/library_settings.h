/* library_settings.h -- the settings of a codec as a text ("codec=aqsgd bits=4"). Pure. */
#ifndef AQSGD_LIBRARY_SETTINGS_H
#define AQSGD_LIBRARY_SETTINGS_H

#include "aqsgd/codec.h"

/* The defaults of the codec and bits that `text` names, and over them its other settings. AQ_INVAL names the key;
 * aq_codec_config_check checks the whole. */
enum aq_status aq_library_settings(const char *text, struct aq_codec_config *out);

#endif
