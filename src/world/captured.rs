//! Captures the log lines of a test.

use std::io;
use std::sync::Arc;

use super::Locked;

/// The log output of one test. Clones share the output.
#[derive(Clone, Debug, Default)]
pub(crate) struct Captured(Arc<Locked<Vec<u8>>>);

impl Captured {
    /// Returns a `MakeWriter` for a subscriber that adds its log lines to this output.
    pub(crate) fn writer(&self) -> impl Fn() -> Self + Send + Sync + use<> {
        let writer = self.clone();
        move || writer.clone()
    }

    #[must_use]
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
