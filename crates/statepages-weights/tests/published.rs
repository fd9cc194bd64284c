//! What was written is read back, and what is wrong is named.

mod cases;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use cases::{Case, Run, cases};
use serde_json::{Value, json};
use statepages_geometry::{IndexerFormat, KvFormat};
use statepages_model::{SeededTensors, Weights};
use statepages_weights::{Published, RoundedTensors, WeightForm, write_published};
use tempfile::TempDir;

fn small() -> Case {
    let mut case = cases().swap_remove(1);
    case.config.cache.compress_ratios = vec![4, 0, 0];
    case.config.cache.num_hidden_layers = 2;
    case.config.n_routed_experts = 4;
    case.config.num_hash_layers = 1;
    case
}

fn written(form: WeightForm, shards: usize) -> TempDir {
    let (case, directory) = (small(), tempfile::tempdir().expect("a directory"));
    let mut source = SeededTensors::new(case.seed);
    let shards = NonZeroUsize::new(shards).expect("a shard");
    write_published(directory.path(), &case.config, &mut source, form, shards).expect("written");
    directory
}

fn logits(weights: Weights, ids: &[u32]) -> Vec<f32> {
    Run::new(Arc::new(weights), KvFormat::Fp8, IndexerFormat::Fp4).chunk(None, ids, 0, 60)
}

#[test]
fn what_was_written_is_read_back() {
    let case = small();
    for form in [WeightForm::F32, WeightForm::Bf16, WeightForm::Published] {
        let mut rounded = RoundedTensors::new(SeededTensors::new(case.seed), form);
        let want = Weights::load(&case.config, &mut rounded).expect("seeded weights");
        let want = logits(want, &case.ids());
        for shards in [1, 3] {
            let directory = written(form, shards);
            let published = Published::open(directory.path(), None).expect("sound files");
            assert_eq!(*published.config(), case.config);
            let got = logits(published.load().expect("sound tensors"), &case.ids());
            assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{form:?}");
        }
    }
}

#[test]
fn a_model_that_is_part_of_the_program_is_checked_and_read_like_a_directory() {
    let directory = written(WeightForm::Published, 1);
    let config = std::fs::read_to_string(directory.path().join("config.json")).expect("a file");
    let file = std::fs::read(directory.path().join("model.safetensors")).expect("a file");
    let bytes: &'static [u8] = Box::leak(file.into_boxed_slice());
    let open = |bytes| Published::embedded(&config, bytes);
    let want = Published::open(directory.path(), None).expect("sound files");
    let got = open(bytes).expect("sound bytes");
    assert_eq!((got.config(), got.memory()), (want.config(), want.memory()));
    let case = small();
    let [want, got] =
        [want, got].map(|model| logits(model.load().expect("sound tensors"), &case.ids()));
    assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()));
    for (bytes, part) in [(&bytes[..bytes.len() - 1], "data_offsets"), (&bytes[..4], "at least 8")]
    {
        let error = open(bytes).expect_err("torn").to_string();
        assert!(error.contains("model.safetensors") && error.contains(part), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_read() {
    let directory = written(WeightForm::Published, 1);
    let needed = Published::open(directory.path(), None).expect("sound files").memory();
    let bytes =
        std::fs::metadata(directory.path().join("model.safetensors")).expect("a file").len();
    assert!(needed > bytes / 2 && needed < 3 * bytes, "{needed} for {bytes}");
    assert!(Published::open(directory.path(), Some(needed)).is_ok());
    let error = Published::open(directory.path(), Some(needed - 1)).expect_err("too large");
    let text = error.to_string();
    assert!(text.contains(&needed.to_string()) && text.contains("nothing was read"), "{text}");
}

/// Header and tensors of a file.
struct Parts {
    header: BTreeMap<String, Value>,
    data: Vec<u8>,
}

impl Parts {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a file");
        let n = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + n]).expect("a header");
        Self { header, data: bytes[8 + n..].to_vec() }
    }

    fn write(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header).expect("plain data");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(&self.data);
        std::fs::write(path, bytes).expect("a writable file");
    }

    /// Changes an expert of [`ROUTES`], given the one before it.
    fn put_id(&mut self, index: usize, id: impl FnOnce(i64) -> i64) {
        let first = self.entry(ROUTES)["data_offsets"][0].as_u64().expect("an offset") as usize;
        assert_eq!(self.entry(ROUTES)["dtype"], "I64");
        let (ids, _) = self.data[first..].as_chunks_mut::<8>();
        ids[index] = id(i64::from_le_bytes(ids[index - 1])).to_le_bytes();
    }

    fn entry(&mut self, name: &str) -> &mut Value {
        self.header.get_mut(name).unwrap_or_else(|| panic!("the file has {name}"))
    }
}

/// Text of the error of a directory, at whichever step it comes.
fn refused(directory: &TempDir) -> String {
    match Published::open(directory.path(), None) {
        Err(error) => error.to_string(),
        Ok(published) => published.load().err().expect("refused").to_string(),
    }
}

/// Experts by token id, two a token.
const ROUTES: &str = "layers.0.ffn.gate.tid2eid";
const WKV: &str = "layers.0.attn.wkv";
const EXPERT: &str = "layers.0.ffn.experts.2.w2";

#[track_caller]
fn tensor_fault(spoil: impl FnOnce(&mut Parts), parts: &[&str]) {
    let directory = written(WeightForm::Published, 1);
    let path = directory.path().join("model.safetensors");
    let mut file = Parts::read(&path);
    spoil(&mut file);
    file.write(&path);
    let text = refused(&directory);
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn faults_of_tensors_are_named() {
    let weight = |stem: &str| format!("{stem}.weight");
    let scale = |stem: &str| format!("{stem}.scale");
    tensor_fault(
        |file| drop(file.header.remove(&weight(WKV))),
        &["layers.0.attn.wkv.weight", "missing"],
    );
    tensor_fault(
        |file| drop(file.header.remove(&scale(WKV))),
        &["layers.0.attn.wkv.scale", "missing"],
    );
    tensor_fault(
        |file| {
            let entry = file.entry(&weight(WKV)).clone();
            file.header.insert("layers.0.attn.wkw.weight".into(), entry);
        },
        &["layers.0.attn.wk", "first byte"],
    );
    tensor_fault(
        |file| {
            let entry = json!({ "dtype": "F32", "shape": [0], "data_offsets": [0, 0] });
            file.header.insert("layers.9.attn.wkv.weight".into(), entry);
        },
        &["layers.9.attn.wkv.weight", "none of the model's"],
    );
    tensor_fault(
        |file| file.entry(&weight(WKV))["shape"] = json!([64, 192]),
        &["layers.0.attn.wkv.weight", "[192, 64]", "[64, 192]"],
    );
    tensor_fault(
        |file| file.entry(&scale(WKV))["shape"] = json!([1, 2]),
        &["layers.0.attn.wkv.scale", "[2, 1]", "[1, 2]"],
    );
    tensor_fault(
        |file| file.entry(&weight(WKV))["dtype"] = json!("I8"),
        &["layers.0.attn.wkv.weight", "F8_E4M3, BF16 or F32", "I8"],
    );
    tensor_fault(
        |file| file.entry(&weight(EXPERT))["dtype"] = json!("F8_E4M3"),
        &["layers.0.ffn.experts.2.w2.weight", "expected I8", "F8_E4M3"],
    );
    tensor_fault(
        |file| file.entry(&scale(EXPERT))["dtype"] = json!("I8"),
        &["layers.0.ffn.experts.2.w2.scale", "F8_E8M0", "I8"],
    );
    tensor_fault(
        |file| file.entry(&weight(WKV))["dtype"] = json!("F8_E5M2"),
        &["layers.0.attn.wkv.weight", "dtype", "F8_E5M2"],
    );
    tensor_fault(
        |file| file.entry(&weight(WKV))["data_offsets"][1] = json!(1_u64 << 50),
        &["layers.0.attn.wkv.weight", "data_offsets"],
    );
    tensor_fault(
        |file| file.entry(&weight(WKV))["shape"] = json!([u64::MAX, 2]),
        &["layers.0.attn.wkv.weight", "bytes"],
    );
    // NaN, as a code and as a scale.
    for name in [weight(WKV), scale(EXPERT)] {
        tensor_fault(
            |file| {
                let at = file.entry(&name)["data_offsets"][0].as_u64().expect("an offset");
                file.data[at as usize] = 0xff;
            },
            &[&format!("tensor {name}: element 0: expected a finite number, got NaN")],
        );
    }
    // An expert that there is not, and one that a token goes to twice.
    for (id, part) in [(4_i64, "expected an id below 4, got 4"), (-1, "got -1")] {
        tensor_fault(|file| file.put_id(7, |_| id), &[&format!("{ROUTES}: element 7: "), part]);
    }
    tensor_fault(
        |file| file.put_id(7, |before| before),
        &[&format!("{ROUTES}: element 7: expected each expert of a row once"), " again"],
    );
}

/// A file whose header has an empty tensor of the name of one behind it in front.
fn doubled(whole: &[u8]) -> Vec<u8> {
    let (length, rest) = whole.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let entry = r#"{"head.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"#;
    let header = [entry.as_bytes(), &rest[1..length]].concat();
    [&(header.len() as u64).to_le_bytes()[..], &header, &rest[length..]].concat()
}

#[test]
fn faults_of_files_are_named() {
    let directory = written(WeightForm::Published, 1);
    let path = directory.path().join("model.safetensors");
    let whole = std::fs::read(&path).expect("a file");
    for (bytes, part) in [
        (&whole[..5], "at least 8"),
        (&whole[..100], "bytes of the header"),
        (&whole[..whole.len() - 1], "data_offsets"),
        (&doubled(&whole), "a second one"),
    ] {
        std::fs::write(&path, bytes).expect("a writable file");
        let text = refused(&directory);
        assert!(text.contains(part) && text.contains("model.safetensors"), "{text}");
    }
    std::fs::remove_file(&path).expect("a file");
    assert!(refused(&directory).contains("model.safetensors"));
    for name in ["model.safetensors", "config.json", "model.safetensors.index.json"] {
        let directory = written(WeightForm::Published, 1);
        let path = directory.path().join(name);
        std::fs::remove_file(&path).ok();
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        let text = refused(&directory);
        assert!(text.contains(name) && text.contains("expected a regular file"), "{text}");
    }

    for name in ["config.json", "model.safetensors.index.json"] {
        let directory = written(WeightForm::Published, 1);
        let path = directory.path().join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len((1 << 28) + 1)).expect("a file");
        let text = refused(&directory);
        assert!(text.contains(name) && text.contains("at most 268435456 bytes"), "{text}");
    }

    let directory = written(WeightForm::Published, 3);
    let path = directory.path().join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).unwrap();
    index["weight_map"]["head.weight"] = json!("model-00003-of-00003.safetensors");
    std::fs::write(&path, index.to_string()).expect("a writable file");
    let text = refused(&directory);
    assert!(
        text.contains("head.weight") && text.contains("00003") && text.contains("00001"),
        "{text}"
    );
    index["weight_map"]["head.weight"] = json!("../elsewhere.safetensors");
    std::fs::write(&path, index.to_string()).expect("a writable file");
    assert!(refused(&directory).contains("../elsewhere.safetensors"));
}

#[test]
fn faults_of_the_config_are_named() {
    let directory = written(WeightForm::Published, 1);
    let path = directory.path().join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).unwrap();
    for (field, value, parts) in [
        ("model_type", json!("llama"), &["model_type", "deepseek_v4", "llama"][..]),
        ("hidden_size", json!(63), &["hidden_size", "16", "63"]),
        ("hidden_size", json!("large"), &["config.json", "hidden_size: invalid type", "u32"]),
        ("scoring_func", json!("sigmoid"), &["scoring_func", "sqrtsoftplus", "sigmoid"]),
        ("n_shared_experts", json!(2), &["n_shared_experts", "1", "2"]),
        ("use_index_cache", json!(true), &["use_index_cache", "true"]),
        ("expert_dtype", json!("fp6"), &["expert_dtype", "fp4", "fp6"]),
        ("expert_dtype", json!("fp8"), &["layers.0.ffn.experts.0.w1.weight", "I8"]),
        ("compress_ratios", json!([4, 7, 0]), &["compress_ratios[1]", "7"]),
        ("num_nextn_predict_layers", json!(0), &["compress_ratios", "expected 2", "got 3"]),
        ("quantization_config", Value::Null, &["F8_E4M3", "quantization_config"]),
    ] {
        let mut config = config.clone();
        config[field] = value;
        std::fs::write(&path, config.to_string()).expect("a writable file");
        let text = refused(&directory);
        assert!(parts.iter().all(|part| text.contains(part)), "{field}: {text}");
    }
    let mut undrafted = config.clone();
    undrafted["num_nextn_predict_layers"] = json!(0);
    undrafted["compress_ratios"].as_array_mut().expect("ratios").pop();
    std::fs::write(&path, undrafted.to_string()).expect("a writable file");
    assert!(refused(&directory).contains("mtp.0."), "surplus tensors are named");
    let mut config = config;
    config["quantization_config"]["weight_block_size"] = json!([64, 64]);
    std::fs::write(&path, config.to_string()).expect("a writable file");
    assert!(refused(&directory).contains("[64, 64]"));
    config.as_object_mut().expect("an object").remove("hidden_size");
    std::fs::write(&path, config.to_string()).expect("a writable file");
    assert!(refused(&directory).contains("hidden_size"));
}
