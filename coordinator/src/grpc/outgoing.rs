//! Streams to clients that read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tonic::Status;

/// Passes `items` on, and drops them, with all that they hold, when the client is gone or takes nothing for
/// `idle_limit` while there is something to take. HTTP/2 asks a stream for more only when the client has room: so
/// somebody else must look at the clock.
pub(super) fn to_reader<T: Send + 'static>(
    items: impl Stream<Item = Result<T, Status>> + Send + 'static,
    idle_limit: Duration,
) -> impl Stream<Item = Result<T, Status>> + Send + 'static {
    let (sender, receiver) = mpsc::channel(1);
    let idle = Arc::new(AtomicBool::new(false));
    tokio::spawn(pass_on(items, sender, idle_limit, idle.clone()));
    futures::stream::unfold(Some((receiver, idle)), move |state| async move {
        let (mut receiver, idle) = state?;
        match receiver.recv().await {
            Some(item) => Some((item, Some((receiver, idle)))),
            // Else its end would pass for that of the items.
            None if idle.load(Ordering::Acquire) => {
                let text =
                    format!("nothing was read for {} s; ask again for the rest", idle_limit.as_secs_f64());
                Some((Err(Status::deadline_exceeded(text)), None))
            }
            None => None,
        }
    })
}

async fn pass_on<T>(
    items: impl Stream<Item = Result<T, Status>>,
    sender: mpsc::Sender<Result<T, Status>>,
    idle_limit: Duration,
    idle: Arc<AtomicBool>,
) {
    tokio::pin!(items);
    loop {
        let place = match tokio::time::timeout(idle_limit, sender.reserve()).await {
            Ok(Ok(place)) => place,
            // The client is gone.
            Ok(Err(_)) => return,
            Err(_) => return idle.store(true, Ordering::Release),
        };
        let item = tokio::select! {
            item = items.next() => item,
            () = sender.closed() => return,
        };
        match item {
            Some(item) => place.send(item),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A stream that says when it is dropped.
    fn numbers(count: u32) -> (impl Stream<Item = Result<u32, Status>> + Send, mpsc::Receiver<()>) {
        let (alive, dropped) = mpsc::channel(1);
        let items = futures::stream::iter(0..count).map(move |number| {
            let _ = &alive;
            Ok(number)
        });
        (items, dropped)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything() {
        let (items, _) = numbers(5);
        let stream = to_reader(items, LIMIT);
        tokio::pin!(stream);
        for number in 0..5 {
            tokio::time::sleep(LIMIT / 2).await;
            assert_eq!(stream.next().await.unwrap().unwrap(), number);
        }
        assert!(stream.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_reads_is_dropped_and_its_end_is_no_regular_one() {
        let (items, mut dropped) = numbers(5);
        let stream = to_reader(items, LIMIT);
        tokio::pin!(stream);
        assert_eq!(stream.next().await.unwrap().unwrap(), 0);
        assert!(dropped.recv().await.is_none());
        assert_eq!(stream.next().await.unwrap().unwrap(), 1);
        assert_eq!(stream.next().await.unwrap().unwrap_err().code(), tonic::Code::DeadlineExceeded);
        assert!(stream.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_waits_for_news_is_not_idle_and_ends_with_its_reader() {
        let (alive, mut dropped) = mpsc::channel::<()>(1);
        let silent = futures::stream::pending::<Result<(), Status>>().map(move |item| {
            let _ = &alive;
            item
        });
        let mut stream = Box::pin(to_reader(silent, LIMIT));
        assert!(tokio::time::timeout(LIMIT * 100, stream.next()).await.is_err());
        drop(stream);
        assert!(dropped.recv().await.is_none());
    }
}
