#include "common/base/descriptors.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/resource.h>

void fg_descriptors_raise(uint32_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* as it was, then */
    }
}

uint32_t fg_descriptors_free(uint32_t *limit_out)
{
    struct rlimit limit;
    *limit_out = UINT32_MAX;
    DIR *open_ones = opendir("/proc/self/fd");
    if (open_ones == NULL) {
        return UINT32_MAX;
    }
    uint64_t count = 0;
    for (const struct dirent *entry; (entry = readdir(open_ones)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(open_ones);
    count--; /* the folder's own */
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= UINT32_MAX) {
        return UINT32_MAX;
    }
    *limit_out = (uint32_t)limit.rlim_cur;
    return count < limit.rlim_cur ? (uint32_t)(limit.rlim_cur - count) : 0;
}
