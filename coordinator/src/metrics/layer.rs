//! Counts and times every gRPC call, so that no handler has to.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tower::Service;

use super::Metrics;

/// A call that was given up before its status was known: gRPC's CANCELLED.
const CANCELLED: i32 = 1;

/// Wraps a gRPC server; see [`CountedService`].
#[derive(Clone, Debug)]
pub struct Layer(pub Metrics);

impl<S> tower::Layer<S> for Layer {
    type Service = CountedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountedService { inner, metrics: self.0.clone() }
    }
}

/// Counts a call when its status is sent, or when it is dropped before that.
#[derive(Clone, Debug)]
pub struct CountedService<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, B, R> Service<Request<B>> for CountedService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = Response<CountedBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = Call {
            metrics: self.metrics.clone(),
            path: request.uri().path().to_owned(),
            start: Instant::now(),
            code: CANCELLED,
        };
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            let mut call = call;
            // A status among the headers: the call failed before its first message.
            call.take_status(response.headers());
            Ok(response.map(|inner| CountedBody { inner: Box::pin(inner), call }))
        })
    }
}

/// A response's body that notes the status in its trailers.
#[derive(Debug)]
pub struct CountedBody<R> {
    inner: Pin<Box<R>>,
    call: Call,
}

impl<R: Body> Body for CountedBody<R> {
    type Data = R::Data;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, R::Error>>> {
        let frame = self.inner.as_mut().poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.call.take_status(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// One call under way; counted when dropped.
#[derive(Debug)]
struct Call {
    metrics: Metrics,
    path: String,
    start: Instant,
    code: i32,
}

impl Call {
    fn take_status(&mut self, headers: &HeaderMap) {
        let status = headers.get("grpc-status").and_then(|status| status.to_str().ok()?.parse().ok());
        self.code = status.unwrap_or(self.code);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.metrics.rpc_ended(&self.path, self.code, self.start.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use tower::{Layer as _, ServiceExt as _};

    use super::*;

    struct Frames(VecDeque<Frame<bytes::Bytes>>);

    impl Body for Frames {
        type Data = bytes::Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<bytes::Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    async fn call(metrics: &Metrics, trailers: Option<&str>) -> Response<CountedBody<Frames>> {
        let mut frames = VecDeque::from([Frame::data(bytes::Bytes::from_static(b"x"))]);
        if let Some(status) = trailers {
            let map = HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())]);
            frames.push_back(Frame::trailers(map));
        }
        let mut frames = Some(Frames(frames));
        let inner = tower::service_fn(move |_: Request<()>| {
            let body = frames.take().unwrap();
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let request = Request::builder().uri("/ringtune.v1.JobService/GetJob").body(()).unwrap();
        Layer(metrics.clone()).layer(inner).oneshot(request).await.unwrap()
    }

    async fn drain(mut body: CountedBody<Frames>) {
        while std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_some() {}
    }

    #[tokio::test]
    async fn the_status_is_read_from_the_trailers() {
        let metrics = Metrics::new().unwrap();
        drain(call(&metrics, Some("0")).await.into_body()).await;
        assert!(metrics.text().unwrap().contains(r#"{code="OK",method="JobService/GetJob"} 1"#));
    }

    #[tokio::test]
    async fn a_call_that_was_given_up_is_cancelled() {
        let metrics = Metrics::new().unwrap();
        drop(call(&metrics, None).await);
        assert!(metrics.text().unwrap().contains(r#"{code="CANCELLED",method="JobService/GetJob"} 1"#));
    }
}
