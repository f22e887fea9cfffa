//! Waiting for something to become true.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// For everything that should happen soon; long, because a busy machine is no failure.
pub const SOON: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(30);

/// Asks again and again until there is an answer; an error when there is none by the deadline.
pub async fn until<T, Answer>(
    what: &str,
    deadline: Duration,
    mut question: impl FnMut() -> Answer,
) -> Result<T>
where
    Answer: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    loop {
        if let Some(answer) = question().await? {
            return Ok(answer);
        }
        if start.elapsed() > deadline {
            bail!("waited {} s in vain: {what}", deadline.as_secs());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
