//! What a worker's gRPC port offers besides the ring: health and reflection.

use ringtune_fake_engine::FakeScript;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::worker::Alone;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_proto_files_finds_its_way() {
    let Alone { coordinator: _coordinator, worker, session } = Alone::start(FakeScript::default()).await;
    let address = format!("http://{}", session.hello.address);
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let service = "ringtune.v1.RingService".to_owned();
    let mut health = HealthClient::new(channel.clone());
    let answer = health.check(HealthCheckRequest { service: service.clone() }).await.unwrap();
    assert_eq!(answer.into_inner().status(), ServingStatus::Serving);

    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(tokio_stream::iter([list])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!("{answer:?}")
    };
    assert!(services.service.iter().any(|found| found.name == service), "{services:?}");
    worker.end().await.unwrap();
}
