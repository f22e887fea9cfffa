//! A way between two daemons that can be closed: what comes then gets no further, and nothing is said about it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
    time::sleep,
};

pub struct Gate {
    /// Where to come instead.
    pub address: String,
    /// Nothing passes any more that comes from whoever connected.
    pub closed: Arc<AtomicBool>,
    _passing: JoinSet<()>,
}

impl Gate {
    pub async fn before(address: &str) -> Self {
        Self::late(address, Duration::ZERO).await
    }

    /// What comes from whoever connected comes later by `delay`, all that came meanwhile with it.
    pub async fn late(address: &str, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let closed = Arc::new(AtomicBool::new(false));
        let (there, of_all) = (address.to_owned(), Arc::clone(&closed));
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut ways = JoinSet::new();
            while let Ok((from, _)) = listener.accept().await {
                let to = TcpStream::connect(&there).await.unwrap();
                let ((reads, answers), (answered, writes)) = (from.into_split(), to.into_split());
                ways.spawn(pass(reads, writes, Arc::clone(&of_all), delay));
                ways.spawn(pass(answered, answers, Arc::default(), Duration::ZERO));
            }
        });
        Self { address: here.to_string(), closed, _passing: passing }
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, closed: Arc<AtomicBool>, delay: Duration) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if closed.load(Ordering::Relaxed) {
            // Both ends stay open, and wait.
            std::future::pending().await
        }
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
