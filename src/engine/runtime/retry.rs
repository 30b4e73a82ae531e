//! The pause between two tries of a database operation.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::session::Stop;

impl Engine {
    /// Waits a fixed time before the next retry of a database operation.
    ///
    /// # Errors
    /// `Lost` once the service has gone down.
    pub(in crate::engine) async fn back_off(&self) -> Result<(), Stop> {
        if self.shutdown_over.is_cancelled() {
            return Err(Stop::Lost);
        }
        self.clock.sleep(Duration::from_millis(200)).await;
        Ok(())
    }
}
