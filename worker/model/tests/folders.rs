//! Invalid model folders, each with an error that names file, key or tensor. The model is made
//! here, small and meaningless: only names, shapes and files matter.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringtune_model::model_files::ModelFiles;
use ringtune_model::{
    Error, GenerateRequest, ModelOptions, Pixels, Precision, SamplerKind, StableDiffusion, check_folder,
};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

type Tensors = BTreeMap<String, Vec<usize>>;

fn linear(tensors: &mut Tensors, name: &str, inputs: usize, outputs: usize, bias: bool) {
    tensors.insert(format!("{name}.weight"), vec![outputs, inputs]);
    if bias {
        tensors.insert(format!("{name}.bias"), vec![outputs]);
    }
}

fn convolution(tensors: &mut Tensors, name: &str, inputs: usize, outputs: usize, kernel: usize) {
    tensors.insert(format!("{name}.weight"), vec![outputs, inputs, kernel, kernel]);
    tensors.insert(format!("{name}.bias"), vec![outputs]);
}

fn norm(tensors: &mut Tensors, name: &str, width: usize) {
    tensors.insert(format!("{name}.weight"), vec![width]);
    tensors.insert(format!("{name}.bias"), vec![width]);
}

fn text_tensors() -> Tensors {
    let mut tensors = Tensors::new();
    tensors.insert("embeddings.token_embedding.weight".into(), vec![16, 8]);
    tensors.insert("embeddings.position_embedding.weight".into(), vec![4, 8]);
    let layer = "encoder.layers.0";
    for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
        linear(&mut tensors, &format!("{layer}.self_attn.{name}"), 8, 8, true);
    }
    for name in ["layer_norm1", "layer_norm2"] {
        norm(&mut tensors, &format!("{layer}.{name}"), 8);
    }
    linear(&mut tensors, &format!("{layer}.mlp.fc1"), 8, 16, true);
    linear(&mut tensors, &format!("{layer}.mlp.fc2"), 16, 8, true);
    norm(&mut tensors, "final_layer_norm", 8);
    tensors
}

fn resnet(tensors: &mut Tensors, name: &str, inputs: usize, outputs: usize, time: Option<usize>) {
    norm(tensors, &format!("{name}.norm1"), inputs);
    convolution(tensors, &format!("{name}.conv1"), inputs, outputs, 3);
    if let Some(width) = time {
        linear(tensors, &format!("{name}.time_emb_proj"), width, outputs, true);
    }
    norm(tensors, &format!("{name}.norm2"), outputs);
    convolution(tensors, &format!("{name}.conv2"), outputs, outputs, 3);
    if inputs != outputs {
        convolution(tensors, &format!("{name}.conv_shortcut"), inputs, outputs, 1);
    }
}

/// One plain resolution; the middle has its transformer.
fn unet_tensors() -> Tensors {
    let mut tensors = Tensors::new();
    convolution(&mut tensors, "conv_in", 4, 8, 3);
    linear(&mut tensors, "time_embedding.linear_1", 8, 32, true);
    linear(&mut tensors, "time_embedding.linear_2", 32, 32, true);
    resnet(&mut tensors, "down_blocks.0.resnets.0", 8, 8, Some(32));
    for index in 0..2 {
        resnet(&mut tensors, &format!("mid_block.resnets.{index}"), 8, 8, Some(32));
        resnet(&mut tensors, &format!("up_blocks.0.resnets.{index}"), 16, 8, Some(32));
    }
    let transformer = "mid_block.attentions.0";
    norm(&mut tensors, &format!("{transformer}.norm"), 8);
    convolution(&mut tensors, &format!("{transformer}.proj_in"), 8, 8, 1);
    convolution(&mut tensors, &format!("{transformer}.proj_out"), 8, 8, 1);
    let layer = format!("{transformer}.transformer_blocks.0");
    for index in 1..=3 {
        norm(&mut tensors, &format!("{layer}.norm{index}"), 8);
    }
    for attention in ["attn1", "attn2"] {
        for name in ["to_q", "to_k", "to_v"] {
            linear(&mut tensors, &format!("{layer}.{attention}.{name}"), 8, 8, false);
        }
        linear(&mut tensors, &format!("{layer}.{attention}.to_out.0"), 8, 8, true);
    }
    linear(&mut tensors, &format!("{layer}.ff.net.0.proj"), 8, 64, true);
    linear(&mut tensors, &format!("{layer}.ff.net.2"), 32, 8, true);
    norm(&mut tensors, "conv_norm_out", 8);
    convolution(&mut tensors, "conv_out", 8, 4, 3);
    tensors
}

fn vae_tensors() -> Tensors {
    let mut tensors = Tensors::new();
    convolution(&mut tensors, "encoder.conv_in", 3, 8, 3);
    convolution(&mut tensors, "encoder.conv_out", 8, 8, 3);
    convolution(&mut tensors, "decoder.conv_in", 4, 8, 3);
    convolution(&mut tensors, "decoder.conv_out", 8, 3, 3);
    resnet(&mut tensors, "encoder.down_blocks.0.resnets.0", 8, 8, None);
    for index in 0..2 {
        resnet(&mut tensors, &format!("decoder.up_blocks.0.resnets.{index}"), 8, 8, None);
    }
    for half in ["encoder", "decoder"] {
        norm(&mut tensors, &format!("{half}.conv_norm_out"), 8);
        for index in 0..2 {
            resnet(&mut tensors, &format!("{half}.mid_block.resnets.{index}"), 8, 8, None);
        }
        let attention = format!("{half}.mid_block.attentions.0");
        norm(&mut tensors, &format!("{attention}.group_norm"), 8);
        for name in ["to_q", "to_k", "to_v", "to_out.0"] {
            linear(&mut tensors, &format!("{attention}.{name}"), 8, 8, true);
        }
    }
    convolution(&mut tensors, "quant_conv", 8, 8, 1);
    convolution(&mut tensors, "post_quant_conv", 4, 4, 1);
    tensors
}

fn write_tensors(path: &Path, tensors: &Tensors) {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, shape)| {
            let count: usize = shape.iter().product();
            let values = (0..count).flat_map(|index| ((index % 7) as f32 * 0.01).to_le_bytes()).collect();
            (name.clone(), shape.clone(), values)
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, values)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), values).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn write_json(path: &Path, value: &Value) {
    std::fs::write(path, value.to_string()).unwrap();
}

/// A model folder that opens.
struct Folder {
    _temporary: tempfile::TempDir,
    path: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().to_path_buf();
        for component in ["text_encoder", "unet", "vae", "scheduler"] {
            std::fs::create_dir(path.join(component)).unwrap();
        }
        write_json(
            &path.join("model_index.json"),
            &json!({"text_encoder": ["transformers", "CLIPTextModel"], "vae": ["diffusers", "AutoencoderKL"],
                    "unet": ["diffusers", "UNet2DConditionModel"], "scheduler": ["diffusers", "DDIMScheduler"]}),
        );
        write_json(
            &path.join("text_encoder/config.json"),
            &json!({"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
                    "num_attention_heads": 2, "max_position_embeddings": 4, "hidden_act": "quick_gelu"}),
        );
        write_json(
            &path.join("unet/config.json"),
            &json!({"block_out_channels": [8], "layers_per_block": 1, "norm_num_groups": 4, "cross_attention_dim": 8,
                    "attention_head_dim": 2, "down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"]}),
        );
        write_json(&path.join("vae/config.json"), &json!({"block_out_channels": [8], "norm_num_groups": 4}));
        write_json(&path.join("scheduler/scheduler_config.json"), &json!({"beta_schedule": "scaled_linear"}));
        write_tensors(&path.join("text_encoder/model.safetensors"), &text_tensors());
        write_tensors(&path.join("unet/diffusion_pytorch_model.safetensors"), &unet_tensors());
        write_tensors(&path.join("vae/diffusion_pytorch_model.safetensors"), &vae_tensors());
        Folder { _temporary: temporary, path }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Sets one key of a config file.
    fn set(&self, file: &str, key: &str, value: Value) {
        let mut config: Value =
            serde_json::from_str(&std::fs::read_to_string(self.at(file)).unwrap()).unwrap();
        config[key] = value;
        write_json(&self.at(file), &config);
    }

    /// One tensor, all of one value.
    fn fill(&self, file: &str, tensor: &str, value: f32) {
        let mut bytes = std::fs::read(self.at(file)).unwrap();
        let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let (start, end) = metadata.tensors()[tensor].data_offsets;
        let place = 8 + header + start..8 + header + end;
        for number in bytes[place].as_chunks_mut::<4>().0 {
            *number = value.to_le_bytes();
        }
        std::fs::write(self.at(file), bytes).unwrap();
    }

    /// Both ways in must give the same error.
    fn error(&self) -> Error {
        let opened = StableDiffusion::open(&self.path, Precision::Fp32).map(drop).unwrap_err();
        let checked = check_folder(&self.path).unwrap_err();
        assert_eq!(opened.to_string(), checked.to_string());
        checked
    }
}

const TEXT: &str = "text_encoder/model.safetensors";
const UNET: &str = "unet/diffusion_pytorch_model.safetensors";
const VAE: &str = "vae/diffusion_pytorch_model.safetensors";

#[test]
fn a_whole_folder_opens_and_says_what_it_is() {
    let folder = Folder::new();
    let info = check_folder(&folder.path).unwrap();
    assert_eq!((info.vocab_size, info.text_width, info.max_text_length), (16, 8, 4));
    assert_eq!((info.latent_channels, info.vae_factor), (4, 1));
    let model = StableDiffusion::open(&folder.path, Precision::Fp32).unwrap();
    assert_eq!(model.token_row(1).unwrap()[..3], [0.01, 0.02, 0.03].map(|value: f32| value));
    assert!(matches!(model.token_row(16), Err(Error::Argument { field: "token id", .. })));
}

#[test]
fn legacy_names_open() {
    let folder = Folder::new();
    let mut text: Tensors =
        text_tensors().into_iter().map(|(name, shape)| (format!("text_model.{name}"), shape)).collect();
    text.insert("text_model.embeddings.position_ids".into(), vec![1, 4]);
    write_tensors(&folder.at(TEXT), &text);
    let legacy = [("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")];
    let vae: Tensors = vae_tensors()
        .into_iter()
        .map(|(name, shape)| {
            (
                legacy
                    .iter()
                    .fold(name, |name, (new, old)| name.replace(&format!(".{new}."), &format!(".{old}."))),
                shape,
            )
        })
        .collect();
    assert!(vae.contains_key("encoder.mid_block.attentions.0.proj_attn.weight"));
    write_tensors(&folder.at(VAE), &vae);
    StableDiffusion::open(&folder.path, Precision::Fp32).unwrap();
}

#[test]
fn shards_open_and_their_index_is_checked() {
    let folder = Folder::new();
    let all = unet_tensors();
    std::fs::remove_file(folder.at(UNET)).unwrap();
    let (first, second): (Tensors, Tensors) =
        all.clone().into_iter().partition(|(name, _)| name.starts_with('u'));
    write_tensors(&folder.at("unet/one.safetensors"), &first);
    write_tensors(&folder.at("unet/two.safetensors"), &second);
    let place = |name: &String| if first.contains_key(name) { "one.safetensors" } else { "two.safetensors" };
    let mut map: Value = all.keys().map(|name| (name.clone(), json!(place(name)))).collect();
    let index = folder.at("unet/diffusion_pytorch_model.safetensors.index.json");
    write_json(&index, &json!({"metadata": {}, "weight_map": map}));
    StableDiffusion::open(&folder.path, Precision::Fp32).unwrap();

    map["conv_in.bias"] = json!("one.safetensors");
    write_json(&index, &json!({"weight_map": map}));
    assert!(
        matches!(folder.error(), Error::Json { file, reason } if file == index && reason.contains("conv_in.bias"))
    );
    map["conv_in.bias"] = json!("../two.safetensors");
    write_json(&index, &json!({"weight_map": map}));
    assert!(matches!(folder.error(), Error::Json { file, .. } if file == index));
}

#[test]
fn a_missing_an_extra_and_a_misshapen_tensor_are_named() {
    let folder = Folder::new();
    let mut tensors = unet_tensors();
    tensors.remove("conv_out.bias");
    write_tensors(&folder.at(UNET), &tensors);
    assert!(matches!(folder.error(), Error::MissingTensor { tensor, expected, .. }
        if tensor == "conv_out.bias" && expected == [4]));

    tensors.insert("conv_out.bias".into(), vec![5]);
    write_tensors(&folder.at(UNET), &tensors);
    assert!(matches!(folder.error(), Error::WrongShape { file, tensor, found, expected, .. }
        if file == folder.at(UNET) && tensor == "conv_out.bias" && found == [5] && expected == [4]));

    tensors.insert("conv_out.bias".into(), vec![4]);
    tensors.insert("stowaway".into(), vec![2, 3]);
    write_tensors(&folder.at(UNET), &tensors);
    assert!(
        matches!(folder.error(), Error::ExtraTensors { count: 1, names, .. } if names.contains("stowaway"))
    );
}

#[test]
fn a_file_cut_short_or_with_a_mad_header_is_refused() {
    let folder = Folder::new();
    let whole = std::fs::read(folder.at(VAE)).unwrap();
    for length in [0, 7, 9, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(folder.at(VAE), &whole[..length]).unwrap();
        assert!(
            matches!(folder.error(), Error::BadSafetensors { file, .. } if file == folder.at(VAE)),
            "{length} bytes"
        );
    }
    for header in [u64::MAX, 1 << 40, whole.len() as u64 - 7] {
        let mut mad = whole.clone();
        mad[..8].copy_from_slice(&header.to_le_bytes());
        std::fs::write(folder.at(VAE), mad).unwrap();
        assert!(matches!(folder.error(), Error::BadSafetensors { .. }), "{header}");
    }
}

#[test]
fn pickles_and_missing_files_are_told_apart() {
    let folder = Folder::new();
    std::fs::remove_file(folder.at(TEXT)).unwrap();
    assert!(matches!(folder.error(), Error::NotAModel { folder: at, .. } if at == folder.at("text_encoder")));
    std::fs::write(folder.at("text_encoder/pytorch_model.bin"), b"pickle").unwrap();
    assert!(matches!(folder.error(), Error::PickleOnly { found, .. } if found == "pytorch_model.bin"));
    std::fs::remove_file(folder.at("model_index.json")).unwrap();
    let error = folder.error();
    assert!(matches!(&error, Error::NotAModel { folder: at, .. } if *at == folder.path));
    assert!(error.to_string().contains("model_index.json"));
    let nowhere = check_folder(&folder.at("nowhere")).unwrap_err();
    assert!(matches!(nowhere, Error::NotAModel { .. }));
}

#[test]
fn values_that_are_not_supported_are_named_with_key_and_file() {
    let cases = [
        ("unet/config.json", "class_embed_type", json!("timestep")),
        ("unet/config.json", "addition_embed_type", json!("text_time")),
        ("unet/config.json", "resnet_time_scale_shift", json!("scale_shift")),
        ("unet/config.json", "mid_block_type", Value::Null),
        ("unet/config.json", "dual_cross_attention", json!(true)),
        ("unet/config.json", "norm_num_groups", json!(3)),
        ("unet/config.json", "attention_head_dim", json!([2, 2])),
        ("unet/config.json", "attention_head_dim", json!(3)),
        ("unet/config.json", "block_out_channels", json!([])),
        ("unet/config.json", "block_out_channels", json!([-8])),
        ("unet/config.json", "down_block_types", json!(["AttnDownBlock2D"])),
        ("unet/config.json", "in_channels", json!(9)),
        ("unet/config.json", "cross_attention_dim", json!(16)),
        ("text_encoder/config.json", "hidden_act", json!("relu")),
        ("text_encoder/config.json", "num_attention_heads", json!(3)),
        ("text_encoder/config.json", "vocab_size", json!(0)),
        ("vae/config.json", "shift_factor", json!(0.5)),
        ("vae/config.json", "scaling_factor", json!(0)),
        ("vae/config.json", "norm_num_groups", json!("many")),
        ("scheduler/scheduler_config.json", "prediction_type", json!("sample")),
        ("scheduler/scheduler_config.json", "beta_schedule", json!("sigmoid")),
        ("scheduler/scheduler_config.json", "trained_betas", json!([0.1])),
        ("model_index.json", "unet", json!(["diffusers", "FluxTransformer2DModel"])),
        ("model_index.json", "text_encoder_2", json!(["transformers", "CLIPTextModelWithProjection"])),
    ];
    for (file, key, value) in cases {
        let folder = Folder::new();
        folder.set(file, key, value.clone());
        let error = folder.error();
        assert!(
            matches!(&error, Error::Config { file: at, key: named, .. } if *at == folder.at(file) && named == key),
            "{file} {key} = {value}: {error}"
        );
    }
}

#[test]
fn defaults_are_those_of_diffusers_and_unknown_keys_are_ignored() {
    let folder = Folder::new();
    folder.set("unet/config.json", "a_key_of_tomorrow", json!({"x": 1}));
    folder.set("unet/config.json", "upcast_attention", json!(true));
    folder.set("unet/config.json", "resnet_out_scale_factor", json!(1.0));
    folder.set("vae/config.json", "scaling_factor", json!(0.5));
    let info = check_folder(&folder.path).unwrap();
    assert_eq!((info.scaling_factor, info.num_train_timesteps), (0.5, 1000));
    assert_eq!(info.prediction_type.name(), "epsilon");
    assert_eq!(info.native_resolution, None);
}

#[test]
fn the_pipelines_own_scheduler_and_size_are_those_that_diffusers_loads() {
    let folder = Folder::new();
    let sampler = || check_folder(&folder.path).unwrap().sampler.name();
    folder.set("scheduler/scheduler_config.json", "_class_name", json!("PNDMScheduler"));
    folder.set("model_index.json", "scheduler", json!(["diffusers", "EulerDiscreteScheduler"]));
    assert_eq!(sampler(), "euler");
    folder.set("model_index.json", "scheduler", Value::Null);
    assert_eq!(sampler(), "pndm");
    // Its file is corrected where pictures are drawn; what trains reads it as it stands.
    folder.set("scheduler/scheduler_config.json", "steps_offset", json!(0));
    let files = ModelFiles::read(&folder.path, &ModelOptions::default()).unwrap();
    assert_eq!(files.sampler(SamplerKind::Pndm).unwrap().steps_offset, 1);
    // Pipelines wrote sizes that were too small, once.
    for (version, sample_size, side) in [
        ("0.6.0", 8, 64),
        ("0.8.1", 96, 96),
        ("0.9.0.dev0", 8, 8),
        ("0.42.1", 8, 8),
        ("1.0.0", 8, 8),
        ("", 8, 8),
    ] {
        folder.set("unet/config.json", "sample_size", json!(sample_size));
        folder.set("unet/config.json", "_diffusers_version", json!(version));
        let info = check_folder(&folder.path).unwrap();
        assert_eq!(info.native_resolution, Some(side * info.vae_factor), "{version}");
    }
}

#[test]
fn weights_that_are_elsewhere_are_said_to_be() {
    // 1. What a clone without git-lfs has.
    let folder = Folder::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3438167540\n";
    std::fs::write(folder.at(UNET), pointer).unwrap();
    let text = folder.error().to_string();
    assert!(text.contains(UNET) && text.contains("git lfs pull"), "{text}");
    // 2. Files of a variant alone.
    let folder = Folder::new();
    for file in [TEXT, UNET, VAE] {
        let variant = file.replace(".safetensors", ".fp16.safetensors");
        std::fs::rename(folder.at(file), folder.at(&variant)).unwrap();
    }
    let text = folder.error().to_string();
    assert!(text.contains("model.variant = \"fp16\"") && text.contains("--variant fp16"), "{text}");
    let options = ModelOptions { variant: "fp16".to_owned(), ..ModelOptions::default() };
    ModelFiles::read(&folder.path, &options).unwrap().check_weights().unwrap();
}

/// A black picture is no picture: where a number comes from that is none is said by tensor and file.
#[test]
fn weights_that_are_no_numbers_draw_nothing() {
    for (file, tensor, says) in [
        (UNET, "conv_out.bias", "what the UNet predicts in step 1 of 2"),
        (TEXT, "final_layer_norm.bias", "what the text encoder makes of a prompt"),
        (VAE, "decoder.conv_out.bias", "what the VAE makes of a picture's latents"),
        (VAE, "encoder.conv_out.bias", "what the VAE makes of a picture"),
        (TEXT, "embeddings.token_embedding.weight", "row 3 of the text encoder's token table"),
    ] {
        let folder = Folder::new();
        folder.fill(file, tensor, f32::NAN);
        let mut model = StableDiffusion::open(&folder.path, Precision::Fp32).unwrap();
        let info = model.info();
        let (side, ids) = (2 * info.vae_factor, vec![1; info.max_text_length]);
        let noise = vec![0.5; 4 * info.latent_channels];
        let request = GenerateRequest {
            batch: 1,
            height: side,
            width: side,
            prompt_ids: &ids,
            negative_ids: &ids,
            rows: &[],
            sampler: SamplerKind::Ddim,
            steps: 2,
            guidance: 2.0,
            noise: &noise,
            step_noise: &[],
        };
        let error = match tensor {
            "encoder.conv_out.bias" => {
                let pixels = Pixels { height: side, width: side, data: vec![0.5; 3 * side * side] };
                model.encode_image(&pixels).map(drop).unwrap_err()
            }
            "embeddings.token_embedding.weight" => model.token_row(3).map(drop).unwrap_err(),
            _ => model.generate(&request, |_, _| true).map(drop).unwrap_err(),
        };
        assert!(matches!(error, Error::NotFinite { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(says) && text.contains(tensor) && text.contains(file), "{text}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// A header with some bytes changed is read or refused, but never brings the process down.
    #[test]
    fn a_damaged_header_never_panics(changes in proptest::collection::vec((0usize..4000, proptest::num::u8::ANY), 1..6)) {
        let folder = Folder::new();
        let mut bytes = std::fs::read(folder.at(UNET)).unwrap();
        for (place, byte) in changes {
            bytes[place] = byte;
        }
        std::fs::write(folder.at(UNET), bytes).unwrap();
        if let Err(error) = StableDiffusion::open(&folder.path, Precision::Fp32) {
            assert!(error.to_string().contains("unet"), "{error}");
        }
    }
}
