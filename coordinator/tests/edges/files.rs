//! Files of jobs: whose they are, and when they go.

use std::collections::BTreeMap;

use ringtune_proto::v1::{
    self, artifact_service_client::ArtifactServiceClient, download_request::Source,
    job_service_client::JobServiceClient, upload_request::Part,
};
use ringtune_shared::checkpoint::{self, About, Numerics, deciding_options};
use ringtune_shared::ids::ContentHash;
use ringtune_shared::state::{Dtype, Encoder, FromTensors, TensorInfo, TensorList, TensorsHash, transfer};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::support::{Coordinator, create, spec};

fn header(content: &[u8], offset: usize) -> v1::UploadHeader {
    v1::UploadHeader {
        sha256: ContentHash::of(content).to_string(),
        size: i64::try_from(content.len()).unwrap(),
        offset: i64::try_from(offset).unwrap(),
        ..Default::default()
    }
}

async fn upload(
    artifacts: &mut ArtifactServiceClient<Channel>,
    header: v1::UploadHeader,
    chunks: &[&[u8]],
) -> Result<v1::UploadResponse, Status> {
    let chunks = chunks.iter().flat_map(|chunk| chunk.chunks(1 << 20));
    let chunks = chunks.map(|chunk| Part::Chunk(chunk.to_vec().into()));
    let parts: Vec<v1::UploadRequest> = std::iter::once(Part::Header(header))
        .chain(chunks)
        .map(|part| v1::UploadRequest { part: Some(part) })
        .collect();
    Ok(artifacts.upload(tokio_stream::iter(parts)).await?.into_inner())
}

async fn download(
    artifacts: &mut ArtifactServiceClient<Channel>,
    request: v1::DownloadRequest,
) -> Result<(v1::Artifact, Vec<u8>), Status> {
    let mut stream = artifacts.download(request).await?.into_inner();
    let (mut artifact, mut content) = (None, Vec::new());
    while let Some(message) = stream.message().await? {
        assert!(message.chunk.len() <= 1 << 20);
        artifact = artifact.or(message.artifact);
        content.extend(message.chunk);
    }
    Ok((artifact.unwrap(), content))
}

/// Why a job is not made, of a spec of which one field is wrong.
async fn refused(jobs: &mut JobServiceClient<Channel>, spec: v1::JobSpec, field: &str) -> String {
    let request = v1::CreateJobRequest { spec: Some(spec), ..Default::default() };
    let details = jobs.create_job(request).await.unwrap_err().get_details_bad_request().unwrap();
    assert_eq!(details.field_violations[0].field, field);
    details.field_violations[0].description.clone()
}

fn by_uri(uri: &str) -> v1::DownloadRequest {
    v1::DownloadRequest { source: Some(Source::Uri(uri.to_owned())), ..Default::default() }
}

#[tokio::test]
async fn a_jobs_files_are_listed_and_go_with_the_last_job_that_has_them() {
    let (coordinator, mut jobs, mut artifacts) = Coordinator::of_files().await;
    let (one, other) = (create(&mut jobs, spec()).await.job_id, create(&mut jobs, spec()).await.job_id);
    let kept = |job_id: &str, name: &str, content: &[u8]| v1::UploadHeader {
        job_id: job_id.to_owned(),
        name: name.to_owned(),
        media_type: "text/csv".to_owned(),
        ..header(content, 0)
    };
    upload(&mut artifacts, kept(&one, "metrics.csv", b"step,loss"), &[b"step,loss"]).await.unwrap();
    upload(&mut artifacts, kept(&one, "job.log", b"own"), &[b"own"]).await.unwrap();
    upload(&mut artifacts, kept(&other, "metrics.csv", b"step,loss"), &[]).await.unwrap();
    let request = v1::ListArtifactsRequest { job_id: one.clone(), page_size: 1, ..Default::default() };
    let page = artifacts.list_artifacts(request.clone()).await.unwrap().into_inner();
    assert_eq!(page.artifacts[0].name, "job.log");
    let request = v1::ListArtifactsRequest { page_token: page.next_page_token, ..request };
    let rest = artifacts.list_artifacts(request).await.unwrap().into_inner();
    assert_eq!((rest.artifacts[0].name.as_str(), rest.next_page_token.as_str()), ("metrics.csv", ""));
    let file = v1::JobFile { job_id: one.clone(), name: "metrics.csv".to_owned() };
    let by_name = v1::DownloadRequest { source: Some(Source::JobFile(file)), ..Default::default() };
    let (artifact, content) = download(&mut artifacts, by_name).await.unwrap();
    assert_eq!((artifact.media_type.as_str(), content.as_slice()), ("text/csv", &b"step,loss"[..]));

    let cancel = v1::CancelJobRequest { job_id: one.clone(), ..Default::default() };
    jobs.cancel_job(cancel).await.unwrap();
    let late = upload(&mut artifacts, kept(&one, "late", b"late"), &[b"late"]).await.unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition);
    jobs.delete_job(v1::DeleteJobRequest { job_id: one }).await.unwrap();
    let own = by_uri(&ContentHash::of(b"own").uri());
    assert_eq!(download(&mut artifacts, own).await.unwrap_err().code(), Code::NotFound);
    let shared = by_uri(&ContentHash::of(b"step,loss").uri());
    assert_eq!(download(&mut artifacts, shared).await.unwrap().0.job_id, other);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_jobs_images_must_be_here_and_stay() {
    let (coordinator, mut jobs, mut artifacts) = Coordinator::of_files().await;
    let image = b"not really a picture";
    let hash = ContentHash::of(image);
    let manifest =
        format!(r#"{{"version":1,"files":[{{"name":"a.png","sha256":"{hash}","size":{}}}]}}"#, image.len());
    let manifest = manifest.as_bytes();
    let uri = upload(&mut artifacts, header(manifest, 0), &[manifest]).await.unwrap().uri;
    let wanted = v1::JobSpec { data: Some(v1::DataSpec { images: uri, ..Default::default() }), ..spec() };
    assert!(refused(&mut jobs, wanted.clone(), "spec.data.images").await.contains("a.png"));

    upload(&mut artifacts, header(image, 0), &[image]).await.unwrap();
    create(&mut jobs, wanted.clone()).await;
    // Its image is counted where the job says how many epochs it wants.
    let mut epochs = wanted;
    let train = epochs.train.as_mut().unwrap();
    (train.max_train_steps, train.num_train_epochs, train.repeats) = (None, Some(3), Some(40));
    let job = create(&mut jobs, epochs.clone()).await;
    let train = job.spec.unwrap().train.unwrap();
    // 40 samples in batches of 16.
    assert_eq!((job.total_steps, train.max_train_steps, train.num_train_epochs), (9, Some(9), None));
    epochs.data = spec().data;
    refused(&mut jobs, epochs, "spec.train.num_train_epochs").await;
    // Another job that happens to list the image as its file is deleted: the image stays.
    let other = create(&mut jobs, spec()).await.job_id;
    let listed = v1::UploadHeader { job_id: other.clone(), name: "a".to_owned(), ..header(image, 0) };
    upload(&mut artifacts, listed, &[]).await.unwrap();
    jobs.cancel_job(v1::CancelJobRequest { job_id: other.clone(), ..Default::default() }).await.unwrap();
    jobs.delete_job(v1::DeleteJobRequest { job_id: other }).await.unwrap();
    assert_eq!(download(&mut artifacts, by_uri(&hash.uri())).await.unwrap().1, image);
    coordinator.stop().await;
}

/// The bytes of a checkpoint of `spec()` after `step` steps, of a state of some zeros.
fn checkpoint(step: u64) -> Vec<u8> {
    let job = ringtune_proto::convert::spec_from_wire(spec()).unwrap();
    let about = About {
        step,
        version: "0.1.0".to_owned(),
        model_hash: "m".to_owned(),
        data_hash: "d".to_owned(),
        options: deciding_options(&job, step),
        numerics: Numerics { class: "c".to_owned(), threads_per_rank: 1, precision: "no".to_owned() },
        provenance: "c/threads-1".to_owned(),
    };
    let source = || {
        let list = TensorList::new(vec![TensorInfo::new("a", Dtype::BF16, vec![1 << 20]).unwrap()]).unwrap();
        FromTensors::new(list, |_, into| {
            into.fill(0);
            Ok(())
        })
    };
    let hash = TensorsHash::of(&mut source()).unwrap();
    let mut encoder = Encoder::new(checkpoint::metadata(&about, &BTreeMap::new(), hash).unwrap(), Vec::new());
    transfer(&mut source(), &mut encoder).unwrap();
    encoder.into_inner()
}

fn embedding(name: &str) -> Vec<u8> {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/embeddings");
    std::fs::read(fixtures.join(name)).unwrap()
}

#[tokio::test]
async fn a_job_starts_from_an_uploaded_embedding_that_fits_it() {
    let (coordinator, mut jobs, mut artifacts) = Coordinator::of_files().await;
    let [good, calls] = ["a1111.pt", "pickle-calls.bin"].map(embedding);
    let starting = |place: &str, vectors| {
        let mut wanted = spec();
        if let Some(train) = &mut wanted.train {
            train.initializer_token.clear();
            train.initializer_embedding = place.to_owned();
            train.num_vectors = Some(vectors);
        }
        wanted
    };
    let mut refused = async |place: &str, vectors| {
        refused(&mut jobs, starting(place, vectors), "spec.train.initializer_embedding").await
    };
    let [good_uri, calls_uri] = [&good, &calls].map(|bytes| ContentHash::of(bytes).uri());
    assert!(refused(&good_uri, 2).await.contains("not uploaded yet"));
    for bytes in [good.as_slice(), &calls] {
        upload(&mut artifacts, header(bytes, 0), &[bytes]).await.unwrap();
    }
    assert!(refused("/e/old.pt", 2).await.contains("upload a file"));
    assert!(refused(&good_uri, 1).await.contains("it has 2 vectors and num_vectors is 1"));
    assert!(refused(&calls_uri, 2).await.contains("Nothing was run"));
    let job_id = create(&mut jobs, starting(&good_uri, 2)).await.job_id;
    // A job that lists it as a file lets it go, and still needs it.
    let listed = v1::UploadHeader { job_id: job_id.clone(), name: "old.pt".to_owned(), ..header(&good, 0) };
    upload(&mut artifacts, listed, &[]).await.unwrap();
    let request = v1::DeleteArtifactRequest { job_id, name: "old.pt".to_owned(), epoch: None };
    artifacts.delete_artifact(request).await.unwrap();
    assert_eq!(download(&mut artifacts, by_uri(&good_uri)).await.unwrap().1, good);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_job_of_another_kind_is_told_its_own_option_of_its_checkpoint() {
    let (coordinator, mut jobs, mut artifacts) = Coordinator::of_files().await;
    let training = |source: &str| {
        let gpt2 = v1::Gpt2FinetuneSpec {
            tokens: "/data/tokens".to_owned(),
            resume_from_checkpoint: Some(source.to_owned()),
            ..Default::default()
        };
        v1::JobSpec {
            kind: "gpt2_finetune".to_owned(),
            model: spec().model,
            gpt2: Some(Box::new(gpt2)),
            ..Default::default()
        }
    };
    let bytes = checkpoint(2);
    let uri = ContentHash::of(&bytes).uri();
    let mut refused =
        async |source: &str| refused(&mut jobs, training(source), "spec.gpt2.resume_from_checkpoint").await;
    assert!(refused(&uri).await.contains("not uploaded yet"));
    upload(&mut artifacts, header(&bytes, 0), &[&bytes]).await.unwrap();
    assert!(refused(&uri).await.contains("kind was \"textual_inversion\", now it is \"gpt2_finetune\""));
    assert!(refused("latest").await.contains("artifact:// URI"));
    // Without one it is queued, with all its steps before it.
    let job = create(&mut jobs, training("")).await;
    assert_eq!((job.step, job.total_steps), (0, 600_000));
    assert_eq!(job.spec.unwrap().gpt2.unwrap().min_lr, Some(6e-5));
    coordinator.stop().await;
}

#[tokio::test]
async fn a_job_begins_at_its_checkpoint_which_stays_as_long_as_the_job() {
    let (coordinator, mut jobs, mut artifacts) = Coordinator::of_files().await;
    let resuming = |source: &str, seed| {
        let mut wanted = spec();
        if let Some(train) = &mut wanted.train {
            train.resume_from_checkpoint = Some(source.to_owned());
            train.seed = seed;
        }
        wanted
    };
    // 1. What cannot be gone on from is refused by its field's name.
    let (second, last) = (checkpoint(2), checkpoint(4));
    let [good, over, broken] =
        [second.as_slice(), &last, b"no checkpoint"].map(|bytes| ContentHash::of(bytes).uri());
    let mut refused = async |source: &str, seed| {
        refused(&mut jobs, resuming(source, seed), "spec.train.resume_from_checkpoint").await
    };
    assert!(refused(&good, None).await.contains("not uploaded yet"));
    for bytes in [second.as_slice(), &last, b"no checkpoint"] {
        upload(&mut artifacts, header(bytes, 0), &[bytes]).await.unwrap();
    }
    assert!(refused(&over, None).await.contains("take an earlier one"));
    assert!(refused(&broken, None).await.contains("it is not a checkpoint"));
    assert!(refused("latest", None).await.contains("artifact:// URI"));
    assert!(refused(&good, Some(5)).await.contains("train.seed was 0, now it is 5"));
    // 2. What fits begins there.
    let job = create(&mut jobs, resuming(&good, None)).await;
    assert_eq!((job.step, job.total_steps), (2, 3));
    // 3. A job that lists it as a file lets it go; the other job still needs it.
    let other = create(&mut jobs, spec()).await.job_id;
    let listed = |name: &str, bytes: &[u8]| v1::UploadHeader {
        job_id: other.clone(),
        name: name.to_owned(),
        ..header(bytes, 0)
    };
    upload(&mut artifacts, listed("checkpoint-2.safetensors", &second), &[]).await.unwrap();
    upload(&mut artifacts, listed("own", b"own"), &[b"own"]).await.unwrap();
    for name in ["checkpoint-2.safetensors", "own", "own", "never-there"] {
        let request = v1::DeleteArtifactRequest { job_id: other.clone(), name: name.to_owned(), epoch: None };
        artifacts.delete_artifact(request).await.unwrap();
    }
    let request = v1::ListArtifactsRequest { job_id: other.clone(), ..Default::default() };
    assert!(artifacts.list_artifacts(request).await.unwrap().into_inner().artifacts.is_empty());
    let own = by_uri(&ContentHash::of(b"own").uri());
    assert_eq!(download(&mut artifacts, own).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(download(&mut artifacts, by_uri(&good)).await.unwrap().1, second);
    // 4. Of a job that ended, and of none, nothing is deleted.
    jobs.cancel_job(v1::CancelJobRequest { job_id: other.clone(), ..Default::default() }).await.unwrap();
    for (job_id, name, code) in [
        (other, "own", Code::FailedPrecondition),
        (ringtune_shared::ids::JobId::new().to_string(), "own", Code::NotFound),
        (job.job_id, "../own", Code::InvalidArgument),
    ] {
        let request = v1::DeleteArtifactRequest { job_id, name: name.to_owned(), epoch: None };
        assert_eq!(artifacts.delete_artifact(request).await.unwrap_err().code(), code);
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn a_job_that_draws_needs_its_embeddings_here() {
    let (_coordinator, mut jobs, mut artifacts) = Coordinator::of_files().await;
    let cat = embedding("a1111.pt");
    let entry = |bytes: &[u8]| format!("{}#cat.pt", ContentHash::of(bytes).uri());
    let drawing = |entry: String| v1::JobSpec {
        kind: "generate".to_owned(),
        model: spec().model,
        generate: Some(v1::GenerateSpec {
            prompts: vec!["a <cat>".to_owned()],
            embeddings: vec!["/e/dog.safetensors".to_owned(), entry],
            ..Default::default()
        }),
        ..Default::default()
    };
    upload(&mut artifacts, header(b"no embedding", 0), &[b"no embedding"]).await.unwrap();
    for (bytes, said) in
        [(cat.as_slice(), "not uploaded yet"), (b"no embedding", "neither a safetensors file")]
    {
        let why = refused(&mut jobs, drawing(entry(bytes)), "spec.generate.embeddings[1]").await;
        assert!(why.contains(said), "{why}");
    }
    upload(&mut artifacts, header(&cat, 0), &[&cat]).await.unwrap();
    create(&mut jobs, drawing(entry(&cat))).await;
}
