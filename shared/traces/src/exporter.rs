//! Sends spans to the collector, many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringtune_shared::daemon::traces::TraceSettings;
use ringtune_shared::version::VERSION;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tracing::{debug, info, warn};

use crate::channel;
use crate::complaints::Complaints;
use crate::error::Error;
use crate::span::{Span, Value};
use crate::tracer::Tracer;
use crate::wire::{ExportRequest, Resource, ResourceSpans, Scope, ScopeSpans, attribute};

/// Spans of one call.
const BATCH: usize = 512;
/// Wait of a call's first span for more.
const GATHER: Duration = Duration::from_secs(1);
/// Timeout of a call.
const CALL: Duration = Duration::from_secs(5);
/// Timeout of the last call at shutdown.
const LAST: Duration = Duration::from_secs(2);

/// The sender of spans.
#[derive(Debug, Clone)]
pub struct About {
    /// Its service, as in `ringtune-worker`.
    pub service: &'static str,
    /// Its instance: a worker's id, or a host's name. Empty: there is only one.
    pub instance: String,
}

/// The task that sends spans.
#[derive(Debug)]
pub struct Exporter {
    task: Option<JoinHandle<()>>,
    end: CancellationToken,
}

/// Starts to send spans where the settings name a collector. No connection is made before there is a span.
///
/// # Errors
/// The settings cannot be used, or their file of roots. Never the collector: it may be there later.
pub fn start(settings: &TraceSettings, about: &About) -> Result<(Tracer, Exporter), Error> {
    let end = CancellationToken::new();
    if !settings.is_on() {
        return Ok((Tracer::off(), Exporter { task: None, end }));
    }
    let channel = channel::open(&settings.endpoint, &settings.ca)?;
    let (tracer, spans, lost) = Tracer::new(settings.sample_ratio);
    let sending = Sending {
        endpoint: settings.endpoint.clone(),
        channel,
        resource: resource(about),
        spans,
        lost,
        complaints: Complaints::default(),
    };
    info!(endpoint = settings.endpoint, share = settings.sample_ratio, "spans of jobs are sent");
    Ok((tracer, Exporter { task: Some(tokio::spawn(sending.run(end.clone()))), end }))
}

impl Exporter {
    /// Sends what is left, for 2 seconds at most.
    pub async fn finish(mut self) {
        self.end.cancel();
        if let Some(task) = self.task.take() {
            // The last call has its own bound; one that is under way then is given up.
            let _ = task.await;
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // The remaining spans are dropped.
        self.end.cancel();
    }
}

struct Sending {
    endpoint: String,
    channel: Channel,
    resource: Resource,
    spans: mpsc::Receiver<Span>,
    lost: Arc<AtomicU64>,
    complaints: Complaints,
}

impl Sending {
    async fn run(mut self, end: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        let running = async {
            while self.spans.recv_many(&mut batch, BATCH).await > 0 {
                let gathered = async {
                    while let Some(room) = BATCH.checked_sub(batch.len()).filter(|room| *room > 0) {
                        if self.spans.recv_many(&mut batch, room).await == 0 {
                            break;
                        }
                    }
                };
                // Whether it is full or not.
                let _ = timeout(GATHER, gathered).await;
                self.send(&mut batch, CALL).await;
            }
        };
        tokio::select! {
            () = end.cancelled() => {}
            () = running => return,
        }
        // Spans in flight are sent again; their ids make duplicates the same span.
        self.spans.close();
        let last = async {
            loop {
                while batch.len() < BATCH {
                    let Ok(span) = self.spans.try_recv() else { break };
                    batch.push(span);
                }
                if batch.is_empty() {
                    return;
                }
                self.send(&mut batch, LAST).await;
            }
        };
        if timeout(LAST, last).await.is_err() {
            debug!(endpoint = self.endpoint, "the collector did not take the last spans in time");
        }
    }

    /// Empties the batch, whatever comes of it. One whose call is given up stays as it is.
    async fn send(&mut self, batch: &mut Vec<Span>, within: Duration) {
        let (count, request) = (batch.len() as u64, self.request(batch));
        let sent = timeout(within, channel::send(self.channel.clone(), request)).await;
        batch.clear();
        let (mut lost, problem) = match sent {
            Ok(Ok((rejected, reason))) => {
                (rejected.min(count), format!("the collector refused them: {reason}"))
            }
            Ok(Err(problem)) => (count, problem),
            Err(_) => (count, format!("no answer within {} s", within.as_secs())),
        };
        let full = self.lost.swap(0, Ordering::Relaxed);
        let problem = if lost == 0 { "they came faster than they could be sent".to_owned() } else { problem };
        lost += full;
        if let Some(lost) = self.complaints.add(lost, Instant::now()) {
            let endpoint = &self.endpoint;
            warn!(endpoint, lost, problem, "spans are lost; nothing else is, and this is said once a minute");
        }
    }

    fn request(&self, batch: &[Span]) -> ExportRequest {
        let scope = Scope { name: "ringtune".to_owned(), version: VERSION.to_owned() };
        let spans = batch.iter().cloned().map(Into::into).collect();
        let resource = Some(self.resource.clone());
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        ExportRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

fn resource(about: &About) -> Resource {
    let text = |text: &str| Value::Text(text.to_owned());
    let mut attributes =
        vec![attribute("service.name", text(about.service)), attribute("service.version", text(VERSION))];
    if !about.instance.is_empty() {
        attributes.push(attribute("service.instance.id", text(&about.instance)));
    }
    Resource { attributes }
}
