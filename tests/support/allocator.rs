//! Counts the bytes that the test's process has allocated.

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Returns the number of bytes that are allocated now. Nextest gives each test a process of its
/// own, so these are the bytes of one test and of the services that it has started.
pub fn allocated_bytes() -> usize {
    ALLOCATOR.allocated()
}
