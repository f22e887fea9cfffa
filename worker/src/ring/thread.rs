//! The thread of a worker's rings: one, on which their connections are read and written and what comes is added up.
//!
//! A segment that has come is looked at, added to, and sent on by the same core, which still has it near; and nothing else
//! of the worker waits for its sums, which take their time.

use std::{io, thread::JoinHandle};

use tokio::{
    net::TcpListener,
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Runs while it is held.
#[derive(Debug)]
pub struct RingThread {
    handle: Handle,
    /// Gone, it ends.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RingThread {
    /// Starts it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("ring".to_owned()).spawn(move || {
            // It has no value: that it is closed is the word.
            let _ = runtime.block_on(ended);
            // Blocking tasks, such as reading a state, are not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, end: Some(end), thread: Some(thread) })
    }

    /// A listener whose connections this thread reads and writes.
    ///
    /// # Errors
    /// The system's.
    pub fn adopt(&self, listener: TcpListener) -> io::Result<TcpListener> {
        let listener = listener.into_std()?;
        let _here = self.handle.enter();
        TcpListener::from_std(listener)
    }

    /// Runtime of the rings' tasks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for RingThread {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported.
            let _ = thread.join();
        }
    }
}
