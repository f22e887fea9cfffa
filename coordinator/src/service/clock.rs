//! The time that inputs carry.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::core::Time;

/// The wall clock at the start and the monotonic time since: a clock that is set back or forward
/// while the coordinator runs loses no session.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    wall: Time,
}

impl Clock {
    /// Reads the wall clock, once.
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self { began: Instant::now(), wall: Time(i64::try_from(wall).unwrap_or(i64::MAX)) }
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.wall.plus(i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// When the clock was started.
    pub fn started(&self) -> Time {
        self.wall
    }
}
