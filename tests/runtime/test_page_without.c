/*
 * test_page_without.c -- the status page of a program that was built without libmicrohttpd (page.c is compiled once
 * more here, without it): a job that asks for one is refused in one line, with the remedy.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "page.h"

static void test_page_that_was_not_built_is_refused_with_a_remedy(void **state)
{
    (void)state;
    const struct aq_page_config config = {.listen = "127.0.0.1:0"};
    struct aq_page *page = NULL;
    aq_error_clear();
    assert_int_equal(aq_page_open(&config, NULL, &page), AQ_NODEV);
    assert_null(page);
    assert_non_null(strstr(aq_error_text(), "127.0.0.1:0"));
    assert_non_null(strstr(aq_error_text(), "apt-get install libmicrohttpd-dev"));
    aq_page_close(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_page_that_was_not_built_is_refused_with_a_remedy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
