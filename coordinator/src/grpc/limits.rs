//! A tower layer that bounds how long a call with a single answer may take.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::Service;
use tracing::warn;

/// Methods whose streams may be open for as long as they like.
const STREAMS: [&str; 8] = [
    "/ringtune.v1.JobService/WatchJob",
    "/ringtune.v1.JobService/WatchJobs",
    "/ringtune.v1.ArtifactService/Upload",
    "/ringtune.v1.ArtifactService/Download",
    "/ringtune.v1.WorkerService/Session",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Answers DEADLINE_EXCEEDED when a unary call takes longer than this.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimitLayer(pub(super) Duration);

impl<S> tower::Layer<S> for CallLimitLayer {
    type Service = CallLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CallLimit { inner, limit: self.0 }
    }
}

/// See [`CallLimitLayer`].
#[derive(Clone, Debug)]
pub(super) struct CallLimit<S> {
    inner: S,
    limit: Duration,
}

impl<S, B> Service<Request<B>> for CallLimit<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let (response, limit) = (self.inner.call(request), self.limit);
        Box::pin(async move {
            if STREAMS.contains(&method.as_str()) {
                return response.await;
            }
            let late = |_| {
                warn!(method, "a call was answered that it took longer than {} s", limit.as_secs_f64());
                let message = format!("the call took longer than {} s", limit.as_secs_f64());
                Ok(Status::deadline_exceeded(message).into_http())
            };
            tokio::time::timeout(limit, response).await.unwrap_or_else(late)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::{Layer as _, ServiceExt as _};

    use super::*;

    async fn status_of(path: &str) -> Option<String> {
        let slow = tower::service_fn(|_: Request<()>| async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let request = Request::builder().uri(path).body(()).unwrap();
        let response = CallLimitLayer(Duration::from_secs(30)).layer(slow).oneshot(request).await.unwrap();
        response.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn only_calls_with_a_single_answer_are_bounded() {
        let exceeded = Some("4".to_owned());
        assert_eq!(status_of("/ringtune.v1.JobService/GetJob").await, exceeded);
        assert_eq!(status_of("/ringtune.v1.JobService/WatchJob").await, None);
    }

    #[test]
    fn every_stream_of_the_api_is_known() {
        use prost::Message as _;

        use crate::access::table::OF_WORKERS;
        let bytes = ringtune_proto::FILE_DESCRIPTOR_SET;
        let files = prost_types::FileDescriptorSet::decode(bytes).unwrap().file;
        for file in files.iter().filter(|file| file.package() == "ringtune.v1") {
            for service in &file.service {
                if OF_WORKERS.contains(&format!("ringtune.v1.{}", service.name()).as_str()) {
                    continue;
                }
                for method in &service.method {
                    let path = format!("/ringtune.v1.{}/{}", service.name(), method.name());
                    let streams = method.client_streaming() || method.server_streaming();
                    assert_eq!(STREAMS.contains(&path.as_str()), streams, "{path}");
                }
            }
        }
    }
}
