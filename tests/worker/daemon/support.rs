//! Settings of workers under test, and the jobs they get.

use std::{
    io::Cursor,
    path::{Path, PathBuf},
    time::Duration,
};

use image::{ImageFormat, Rgb, RgbImage};
use ringtune_shared::job::{JobSpec, parse_job_toml};
use ringtune_worker::settings::Settings;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::coordinator::Coordinator;

/// A test whose session lasts longer, or that waits longer, hangs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Bounds a wait.
pub async fn in_time<T>(wait: impl Future<Output = T>) -> T {
    timeout(LIMIT, wait).await.expect("the test hangs")
}

pub fn settings(coordinator: &Coordinator, state: &TempDir) -> Settings {
    let mut settings = Settings::default();
    settings.coordinator.url = coordinator.url();
    settings.grpc.listen.set_port(0);
    settings.http.listen.set_port(0);
    settings.ring.peer_timeout_seconds = 5.0;
    settings.storage.state_dir = state.path().to_owned();
    settings
}

/// Something of the repository's fixtures, which lie above the crate that is tested.
pub fn fixture(path: &str) -> PathBuf {
    let mut folders =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("tests/fixtures"));
    folders.find(|folder| folder.is_dir()).expect("a folder of fixtures").join(path)
}

/// Small pictures, each another.
pub fn pictures(count: u8) -> Vec<(String, Vec<u8>)> {
    (0..count)
        .map(|number| {
            let picture = RgbImage::from_fn(16, 16, |x, y| {
                Rgb([number.wrapping_mul(40), (x * 16) as u8, (y * 16) as u8])
            });
            let mut bytes = Cursor::new(Vec::new());
            picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
            (format!("picture-{number}.png"), bytes.into_inner())
        })
        .collect()
}

/// Uploads pictures and describes a job on them.
pub fn job(coordinator: &Coordinator, steps: u64, world_size: u32) -> JobSpec {
    job_on(coordinator, pictures(3), steps, world_size)
}

/// The same on other pictures.
pub fn job_on(
    coordinator: &Coordinator,
    pictures: Vec<(String, Vec<u8>)>,
    steps: u64,
    world_size: u32,
) -> JobSpec {
    let borrowed: Vec<(&str, Vec<u8>)> =
        pictures.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let images = coordinator.add_images(&borrowed);
    parse_job_toml(&format!(
        "kind = \"textual_inversion\"\nname = \"test\"\n\
         [model]\nbase = \"{}\"\n[data]\nimages = \"{images}\"\n\
         [train]\nplaceholder_token = \"<thing>\"\ninitializer_token = \"star\"\nnum_vectors = 2\n\
         resolution = 16\ntrain_batch_size = 2\nmax_train_steps = {steps}\nlearning_rate = 0.01\nsave_steps = 2\n\
         [cluster]\nworld_size = {world_size}\nmin_world_size = 1\n",
        fixture("toy-sd").display()
    ))
    .unwrap()
}

/// Calls of a service that no worker makes, as `tonic::async_trait` writes them.
macro_rules! not_needed {
    ($($call:ident($asked:ty) -> $answer:ty;)*) => { $(
        fn $call<'life0, 'async_trait>(
            &'life0 self,
            _: tonic::Request<$asked>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<tonic::Response<$answer>, tonic::Status>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(tonic::Status::unimplemented("not needed")) })
        }
    )* };
}
pub(crate) use not_needed;
