//! Measures the latency of memory: the time of a load whose address comes from the load before it.
//! Other virtual machines on the same hardware can slow the memory down without using a processor
//! of this machine. So two runs of a benchmark are comparable only if this latency was about the
//! same in both runs.
//!
//! `memory-latency KIB…` prints the median for each size, such as `3.9 ns in 256 KiB`.

use std::hint::black_box;
use std::time::Instant;

/// The number of loads in a measurement.
const LOADS: u32 = 1_000_000;
const MEASUREMENTS: usize = 7;
/// The number of array elements in a cache line of 64 bytes. Each load reads a different cache
/// line.
const LINE: usize = 64 / size_of::<usize>();

/// Returns array elements that form one cycle through memory. The first element of each cache line
/// holds the index of the first element of another line. The indexes lead through all lines, in a
/// random order, and back to the first line.
fn random_cycle(kib: usize) -> Vec<usize> {
    let lines = kib * 1024 / size_of::<usize>() / LINE;
    let mut order: Vec<usize> = (0..lines).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15_usize;
    for last in (1..lines).rev() {
        // Marsaglia's xorshift: the order is the same in each run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(last, random % (last + 1));
    }
    let mut slots = vec![0; lines * LINE];
    for (line, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        slots[line * LINE] = next * LINE;
    }
    slots
}

/// Returns the mean duration of a load in nanoseconds.
fn measure(slots: &[usize]) -> f64 {
    let began = Instant::now();
    let mut at = 0;
    for _ in 0..LOADS {
        at = slots[at];
    }
    black_box(at);
    began.elapsed().as_secs_f64() * 1e9 / f64::from(LOADS)
}

fn main() {
    let sizes = std::env::args().skip(1);
    let figures = sizes.map(|kib| {
        let slots = random_cycle(kib.parse().expect("a number of KiB"));
        let mut measured: Vec<f64> = (0..MEASUREMENTS).map(|_| measure(&slots)).collect();
        measured.sort_by(f64::total_cmp);
        format!("{:.1} ns in {kib} KiB", measured[MEASUREMENTS / 2])
    });
    println!("{}", figures.collect::<Vec<_>>().join(", "));
}
