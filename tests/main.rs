//! One binary for all integration tests: each module is a part of the service seen from outside.

#[cfg(test)]
mod architecture;
#[cfg(test)]
mod first_run;
#[cfg(test)]
mod packaging;
