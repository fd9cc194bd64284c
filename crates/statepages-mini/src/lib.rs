//! dsv4-mini: the files of the trained model that every build carries, and the generator of the texts
//! that it was trained on, so that its answers can be judged on texts that training never saw.
//!
//! A text is a logbook: facts about people, codes that people log, guests of berths, and questions.
//! [`World`] holds the words as token ids, [`Logbook`] grows a text and asks the questions of the three
//! [`Third`]s. `tools/mini/worldgen.py` is the same generator; `models/dsv4-mini/prompts.jsonl` has
//! digests of its prompts, by which the two are compared.

mod chance;
mod logbook;
mod world;

pub use logbook::{EvaluationPrompt, Logbook, Question, Third, evaluation_prompt};
pub use world::{World, WorldError};

/// The model's `config.json`.
pub const CONFIG: &str = include_str!("../../../models/dsv4-mini/config.json");
/// The model's `tokenizer.json`.
pub const TOKENIZER: &str = include_str!("../../../models/dsv4-mini/tokenizer.json");
/// The words and sentences of its texts, a [`World`].
pub const WORLD: &str = include_str!("../../../models/dsv4-mini/world.json");
/// The model's `model.safetensors`.
pub static TENSORS: &[u8] = include_bytes!("../../../models/dsv4-mini/model.safetensors");
