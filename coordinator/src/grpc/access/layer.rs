//! The tower layer through which every call goes: who makes it, and whether they may.
//!
//! It stands inside the layer that counts calls, so that those which are not made are counted too.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use ringtune_security::{Caller as Seen, CountedAs, Peer, Validity};
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tower::Service;

use crate::access::table::{self, Who};
use crate::access::{Access, Audit, Call, Caller, Denied, Identified, TokenWatch, decide};
use crate::grpc::status::{self, FailedRequest};
use crate::metrics::code_name;

/// A call that was given up before its status was known.
const CANCELLED: i32 = Code::Cancelled as i32;
/// What an authorization begins with.
const BEARER: &str = "bearer ";

/// See [`Guarded`].
#[derive(Clone)]
pub(in crate::grpc) struct AccessLayer(pub(in crate::grpc) Access);

impl<S> tower::Layer<S> for AccessLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Guarded { inner, access: self.0.clone() }
    }
}

/// Makes only calls that their callers may make; each of those knows its [`Call`].
#[derive(Clone)]
pub(in crate::grpc) struct Guarded<S> {
    inner: S,
    access: Access,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>();
        let address = peer.map(|peer| peer.address).or_else(|| plain_address(&request));
        let address = address.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        // A port of TLS is never open, whatever else was said.
        if !self.access.is_secured() && peer.is_none_or(|peer| peer.caller == Seen::Open) {
            let row = table::grpc_row(request.uri().path());
            request.extensions_mut().insert(Call::new(Caller::Open, address, row));
            if CountedAs::of(&Seen::Open, address.ip()).is_none() {
                return Box::pin(self.inner.call(request));
            }
            let ready = self.inner.clone();
            let inner = std::mem::replace(&mut self.inner, ready);
            return Box::pin(open(inner, self.access.clone(), request, address));
        }
        // Of whom the connection says nothing nothing is known.
        let seen = peer.map_or(Seen::Anonymous, |peer| peer.caller.clone());
        let valid = peer.and_then(|peer| peer.valid);
        let ready = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(guarded(inner, self.access.clone(), request, seen, valid, address))
    }
}

/// The caller's address on a port without TLS.
fn plain_address(request: &Request<Body>) -> Option<SocketAddr> {
    request.extensions().get::<TcpConnectInfo>()?.remote_addr()
}

/// On a port that is open to more than this machine.
async fn open<S>(
    mut inner: S,
    access: Access,
    request: Request<Body>,
    address: SocketAddr,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    match access.turn(&Seen::Open, address.ip(), None).await {
        Ok(()) => inner.call(request).await,
        Err(denied) => Ok(not_made(&access, &denied)),
    }
}

/// The answer to a call that has no line in the audit log: whoever floods would fill it.
fn not_made(access: &Access, denied: &Denied) -> Response<Body> {
    access.count(denied);
    status::denied(denied).into_http()
}

async fn guarded<S>(
    mut inner: S,
    access: Access,
    mut request: Request<Body>,
    seen: Seen,
    valid: Option<Validity>,
    address: SocketAddr,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    let row = table::grpc_row(request.uri().path());
    // For what everybody may do, no token is looked at.
    let bearer = bearer(request.headers()).filter(|_| row.is_none_or(|row| row.who != Who::Everybody));
    // 1. Is it its turn?
    if let Err(denied) = access.turn(&seen, address.ip(), bearer.as_deref()).await {
        return Ok(not_made(&access, &denied));
    }
    // 2. Who is it?
    let identified = access.identify(&seen, address.ip(), bearer.as_deref()).await;
    let (identified, failure) = match identified {
        Ok(identified) => (identified, None),
        Err(error) => (Identified { caller: Caller::seen(&seen), watch: None }, Some(error)),
    };
    // 3. May they?
    let call = Call::new(identified.caller, address, row);
    let audit = row.and_then(|row| Audit::of(row, &call));
    let refused = match failure {
        Some(crate::access::Error::Denied(denied)) => Some(Err(denied)),
        Some(other) => Some(Ok(Status::from(FailedRequest::from(other)))),
        None => decide(row, call.caller()).err().map(Err),
    };
    if let Some(refused) = refused {
        let (status, why) = match refused {
            Ok(status) => (status, None),
            Err(denied) => {
                access.count(&denied);
                (status::denied(&denied), Some(denied.text))
            }
        };
        if let Some(audit) = audit {
            audit.write(code_name(status.code() as i32), why.as_deref());
        }
        return Ok(status.into_http());
    }
    // 4. They do, as long as their token or certificate is good.
    let mut over = over(identified.watch, valid, &call);
    request.extensions_mut().insert(call);
    let mut noted = Noted { audit, code: CANCELLED };
    let response = match &mut over {
        None => inner.call(request).await?,
        Some(over) => tokio::select! {
            biased;
            status = over => {
                noted.code = status.code() as i32;
                return Ok(status.into_http());
            }
            response = inner.call(request) => response?,
        },
    };
    noted.take_status(response.headers());
    if noted.audit.is_none() && over.is_none() {
        return Ok(response);
    }
    Ok(response.map(|inner| Body::new(GuardedBody { inner, over, noted, ended: false })))
}

/// The token that came with a call. Another way to say who one is counts as an empty one, which is refused.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(AUTHORIZATION)?.to_str().unwrap_or_default();
    let token = match text.get(..BEARER.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(BEARER) => text.get(BEARER.len()..).unwrap_or_default(),
        _ => "",
    };
    Some(token.trim().to_owned())
}

type Over = Pin<Box<dyn Future<Output = Status> + Send>>;

/// The end of what shows who makes a call.
fn over(token: Option<TokenWatch>, valid: Option<Validity>, call: &Call) -> Option<Over> {
    if let Some(watch) = token {
        return Some(Box::pin(async { status::denied(&watch.over().await) }));
    }
    let (known, valid) = (call.caller().known()?.to_string(), valid?);
    Some(Box::pin(async move {
        valid.over().await;
        status::certificate_over(&known, valid.until)
    }))
}

/// Writes the audit log's line when it is dropped.
struct Noted {
    audit: Option<Audit>,
    code: i32,
}

impl Noted {
    fn take_status(&mut self, headers: &HeaderMap) {
        let status = headers.get("grpc-status").and_then(|status| status.to_str().ok()?.parse().ok());
        self.code = status.unwrap_or(self.code);
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(audit) = self.audit.take() {
            audit.write(code_name(self.code), None);
        }
    }
}

/// An answer that ends when its caller's token or certificate does, and notes how it ended.
struct GuardedBody {
    inner: Body,
    over: Option<Over>,
    noted: Noted,
    ended: bool,
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(over) = &mut self.over
            && let Poll::Ready(status) = over.as_mut().poll(context)
        {
            self.ended = true;
            let mut trailers = HeaderMap::new();
            self.noted.code = status.code() as i32;
            return Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))));
        }
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.noted.take_status(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
