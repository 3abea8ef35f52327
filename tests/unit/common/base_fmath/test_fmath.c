#include "common/base/fmath.h"

#include <math.h>

#include "tests/support/test.h"

/* The distance of `got` from the exact value, in units of the float's last place there. */
static double ulps(float got, double want)
{
    if (got == (float)want) {
        return 0;
    }
    if (isinf(got) || isinf((float)want) || isnan(got)) {
        return 1e9;
    }
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

/* Every 4099th float: all signs and exponents, half a million and more values. */
static const uint64_t step = 4099;

Test(fmath, exp_is_within_one_ulp)
{
    double worst = 0;
    float worst_at = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
        float x = fg_fmath_float((uint32_t)bits);
        if (isnan(x)) {
            continue;
        }
        double off = ulps(fg_expf(x), exp((double)x));
        if (off > worst) {
            worst = off;
            worst_at = x;
        }
    }
    cr_log_info("exp: %.3f ulp at %a", worst, (double)worst_at);
    cr_assert(worst <= 1.0, "%g ulp at %a", worst, (double)worst_at);
}

Test(fmath, log_is_within_one_ulp)
{
    double worst = 0;
    float worst_at = 0;
    for (uint64_t bits = 1; bits < 0x7F800000u; bits += step / 4) {
        float x = fg_fmath_float((uint32_t)bits);
        double off = ulps(fg_logf(x), log((double)x));
        if (off > worst) {
            worst = off;
            worst_at = x;
        }
    }
    cr_log_info("log: %.3f ulp at %a", worst, (double)worst_at);
    cr_assert(worst <= 1.0, "%g ulp at %a", worst, (double)worst_at);
}

Test(fmath, log1p_core_keeps_the_digits_of_small_numbers)
{
    for (float f = 0x1p-60f; f < 0.29f; f *= 1.37f) {
        cr_assert(ulps(fg_log1pf_core(-f, 0), log1p(-(double)f)) <= 2, "%a", (double)f);
        cr_assert(ulps(fg_log1pf_core(f, 0), log1p((double)f)) <= 2, "%a", (double)f);
    }
}

Test(fmath, edges_are_as_in_libm)
{
    float infinity = (float)INFINITY, nan = (float)NAN;
    cr_assert_eq(fg_expf(0), 1);
    cr_assert_eq(fg_expf(-0.0f), 1);
    cr_assert_eq(fg_expf(infinity), infinity);
    cr_assert_eq(fg_expf(-infinity), 0);
    cr_assert(isfinite(fg_expf(88.72283f)));
    cr_assert(isinf(fg_expf(88.7229f)));
    cr_assert_eq(fg_expf(-103.9f), 0x1p-149f);
    cr_assert_eq(fg_expf(-104.0f), 0);
    cr_assert(isnan(fg_expf(nan)));
    cr_assert_eq(fg_logf(1), 0);
    cr_assert_eq(fg_logf(0), -infinity);
    cr_assert_eq(fg_logf(-0.0f), -infinity);
    cr_assert_eq(fg_logf(infinity), infinity);
    cr_assert(isnan(fg_logf(-1)));
    cr_assert(isnan(fg_logf(-infinity)));
    cr_assert(isnan(fg_logf(nan)));
    cr_assert(ulps(fg_logf(0x1p-149f), -149 * log(2)) <= 1);
}

Test(fmath, sincos_is_within_1e_15_up_to_a_million)
{
    double worst = 0;
    for (int i = 0; i < 1000000; i++) {
        /* Whole numbers (positions), their neighbours, and numbers in between. */
        double x = (double)i * 1.048576 * (i % 2 == 0 ? 1 : -1);
        x = i % 3 == 0 ? floor(x) : i % 3 == 1 ? (double)(float)x : x;
        double sine, cosine;
        fg_sincos(x, &sine, &cosine);
        worst = fmax(worst, fabs(sine - sin(x)));
        worst = fmax(worst, fabs(cosine - cos(x)));
    }
    cr_log_info("sincos: %g", worst);
    cr_assert(worst < 1e-15, "%g", worst);
    /* Multiples of pi/2 are where the reduction loses digits. */
    for (int n = -667000; n <= 667000; n += 23) {
        double x = n * 1.5707963267948966, sine, cosine;
        fg_sincos(x, &sine, &cosine);
        cr_assert(fabs(sine - sin(x)) < 1e-15 && fabs(cosine - cos(x)) < 1e-15, "%d", n);
    }
    double sine, cosine;
    fg_sincos(0, &sine, &cosine);
    cr_assert(sine == 0 && cosine == 1);
}

/* The contract is about bits: these were computed once and must never change on any machine. */
Test(fmath, bits_are_the_stored_ones)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (uint32_t i = 0; i < 200000; i++) {
        float x = ((float)i - 100000.0f) * 0.00131f;
        float results[2] = { fg_expf(x), fg_logf((float)i * 0.37f) };
        double turns[2];
        fg_sincos((double)i * 5.2387, &turns[0], &turns[1]);
        unsigned char bytes[sizeof results + sizeof turns];
        memcpy(bytes, results, sizeof results);
        memcpy(bytes + sizeof results, turns, sizeof turns);
        for (size_t b = 0; b < sizeof bytes; b++) {
            hash = (hash ^ bytes[b]) * 0x100000001B3u;
        }
    }
    cr_assert_eq(hash, 0xAAF3B79B4D4E2827ull, "got 0x%llx", (unsigned long long)hash);
}
