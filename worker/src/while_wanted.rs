//! Work that blocks for long and ends early when nobody waits for it any more: threads are not stopped, so it has to ask.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::task::JoinError;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

/// Work on a thread that may block. Dropped before its end, it is told so; what has not begun by then never does.
#[derive(Debug)]
pub(crate) struct WhileWanted<T> {
    task: AbortOnDropHandle<T>,
    _wanted: DropGuard,
}

/// Begins `work`. Its token is cancelled once nobody waits for it any more.
pub(crate) fn spawn_blocking<T, W>(work: W) -> WhileWanted<T>
where
    T: Send + 'static,
    W: FnOnce(&CancellationToken) -> T + Send + 'static,
{
    let wanted = CancellationToken::new();
    let still = wanted.clone();
    let task = ringtune_shared::tasks::spawn_blocking(move || work(&still));
    WhileWanted { task: AbortOnDropHandle::new(task), _wanted: wanted.drop_guard() }
}

impl<T> WhileWanted<T> {
    /// It has come to its end.
    pub(crate) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl<T> Future for WhileWanted<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_told_when_nobody_waits_for_it_any_more() {
        assert_eq!(spawn_blocking(|still| (7, still.is_cancelled())).await.unwrap(), (7, false));
        let ((begins, begun), (ends, ended)) = (oneshot::channel(), oneshot::channel());
        let work = spawn_blocking(move |still| {
            begins.send(()).unwrap();
            while !still.is_cancelled() {
                std::thread::yield_now();
            }
            ends.send(()).unwrap();
        });
        begun.await.unwrap();
        drop(work);
        ended.await.unwrap();
    }
}
