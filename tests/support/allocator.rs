//! Counts and limits the bytes that the test's process has allocated.

use std::time::Duration;

use cap::Cap;
use mimalloc::MiMalloc;

use super::pause;

/// The time within which ended work must free its memory.
const FREE_LIMIT: Duration = Duration::from_mins(1);

#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

/// Returns the number of bytes that are allocated now. Nextest gives each test a process of its
/// own, so these are the bytes of one test and of the services that it has started.
pub fn allocated_bytes() -> usize {
    ALLOCATOR.allocated()
}

/// Lets the test's process allocate at most `more` bytes in addition to those that are allocated
/// now. The process aborts if it allocates more. `usize::MAX` removes the limit.
pub fn limit_further_bytes(more: usize) {
    let limit = ALLOCATOR.allocated().saturating_add(more);
    ALLOCATOR.set_limit(limit).unwrap();
}

/// Waits until the process has less than `bytes` more bytes allocated than `before`, because ended
/// work frees memory a little later. Panics after [`FREE_LIMIT`].
pub async fn assert_grows_less_than(before: usize, bytes: usize) {
    let growth = || allocated_bytes().saturating_sub(before);
    let freed = async {
        while growth() >= bytes {
            pause().await;
        }
    };
    let freed = tokio::time::timeout(FREE_LIMIT, freed).await;
    assert!(freed.is_ok(), "{} bytes are kept", growth());
}
