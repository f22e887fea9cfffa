//! Compiles the .proto files with protox: no protoc on the machine is needed.
use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 7] = ["access", "artifact", "cluster", "job", "probe", "ring", "worker"];

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = FILES.iter().map(|name| format!("ringtune/v1/{name}.proto")).collect();
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(&files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // With the files' comments and imports: reflection serves these bytes.
    fs::write(out.join("ringtune_descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(true)
        // Equal messages have equal bytes: CreateJob compares a repeated request by them.
        .btree_map(".")
        .bytes(".ringtune.v1.RingChunk.payload")
        .bytes(".ringtune.v1.FetchStateResponse.chunk")
        .bytes(".ringtune.v1.UploadRequest.chunk")
        .bytes(".ringtune.v1.DownloadResponse.chunk")
        .bytes(".ringtune.v1.PushRequest.chunk")
        .bytes(".ringtune.v1.PullResponse.chunk")
        // Jobs of other kinds, which all messages about jobs hold, stay as small as they were.
        .boxed(".ringtune.v1.JobSpec.gpt2")
        .boxed(".ringtune.v1.JobSpec.generate_text")
        .boxed(".ringtune.v1.JobSpec.lora")
        .compile_fds(descriptors)?;
    Ok(())
}
