/* SPDX-License-Identifier: MIT
 * What libmicrohttpd calls (exchange.c). Apart from http.h, so that only two files see its header. */
#ifndef PL_BINDINGS_HTTP_EXCHANGE_H
#define PL_BINDINGS_HTTP_EXCHANGE_H

#include <microhttpd.h>

enum MHD_Result http_on_request(void *server, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                                const char *data, size_t *n, void **request);
void http_on_completed(void *server, struct MHD_Connection *mhd, void **request, enum MHD_RequestTerminationCode why);
void http_on_connection(void *server, struct MHD_Connection *mhd, void **connection, enum MHD_ConnectionNotificationCode what);

#endif
