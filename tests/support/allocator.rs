//! Counts and limits the bytes that the test's process has allocated.

use cap::Cap;
use mimalloc::MiMalloc;

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
