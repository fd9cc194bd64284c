//! The generator against the digests that the Python generator wrote, and refusals of world files.

use std::collections::BTreeMap;

use serde::Deserialize;
use statepages_mini::{Logbook, TOKENIZER, Third, WORLD, World, evaluation_prompt};

#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    vocab: BTreeMap<String, u32>,
}

fn vocabulary() -> BTreeMap<String, u32> {
    serde_json::from_str::<Tokenizer>(TOKENIZER).expect("tokenizer.json").model.vocab
}

fn world() -> World {
    let vocabulary = vocabulary();
    World::parse(WORLD, |token| vocabulary.get(token).copied()).expect("world.json")
}

#[derive(Deserialize)]
struct Row {
    index: u64,
    kind: String,
    boundary: usize,
    tokens: usize,
    answer: String,
    fnv1a: String,
}

fn fnv1a(ids: &[u32]) -> u64 {
    ids.iter().flat_map(|id| id.to_le_bytes()).fold(0xCBF2_9CE4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[test]
fn every_evaluation_prompt_is_the_one_that_was_measured() {
    let world = world();
    let words: BTreeMap<u32, String> =
        vocabulary().into_iter().map(|(token, id)| (id, token.replace('\u{2581}', " "))).collect();
    let rows: Vec<Row> = include_str!("../../../models/dsv4-mini/prompts.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    assert_eq!(rows.len(), 522);
    for row in rows {
        let prompt = evaluation_prompt(&world, row.index).expect("the prompt exists");
        assert_eq!(prompt.question.third.name(), row.kind);
        assert_eq!((prompt.boundary, prompt.ids.len()), (row.boundary, row.tokens));
        let [one, two] = prompt.question.answer.map(|id| words[&id].as_str());
        assert_eq!(format!("{one}{two}").trim_start(), row.answer);
        assert_eq!(format!("{:016x}", fnv1a(&prompt.ids)), row.fnv1a, "prompt {}", row.index);
    }
}

#[test]
fn a_question_is_asked_once_and_an_exchange_ends_in_its_answer() {
    let world = world();
    let mut book = Logbook::new(&world, 7);
    book.grow(1_000);
    assert_eq!(book.ids().len(), 1_000);
    book.grow(900);
    assert_eq!(book.ids().len(), 1_000, "nothing is taken back");
    let mut asked = Vec::new();
    while let Some(question) = book.ask(Third::History) {
        assert!(!asked.contains(&question.ids), "asked twice");
        asked.push(question.ids.clone());
        assert_eq!(book.ids().len(), 1_000, "asking writes nothing");
        if asked.len() == 3 {
            book.exchange(&question);
            let [one, two] = question.answer;
            assert!(book.ids().ends_with(&[one, two, world.stop()]));
            break;
        }
    }
    assert_eq!(asked.len(), 3);
}

#[test]
fn faults_of_a_world_file_are_named() {
    let vocabulary = vocabulary();
    let refused = |from: &str, to: &str, parts: &[&str]| {
        assert!(WORLD.contains(from), "{from}");
        let text = WORLD.replacen(from, to, 1);
        let error = World::parse(&text, |token| vocabulary.get(token).copied());
        let error = error.expect_err("refused").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused("world-1", "world-2", &["format", "world-1", "world-2"]);
    refused("\"Ada\"", "\"Adam\"", &["names", "Adam"]);
    refused("{name} logs", "{berth} logs", &["templates.log", "berth"]);
    refused("{name} logs", "{nome} logs", &["templates.log", "nome"]);
    refused("\"berths\"", "\"berth\"", &["berth"]);
    refused("[\"rain\"", "[\"raining\"", &["weather", "raining"]);
    refused("[\"and so on\"]", "[]", &["world.json"]);
}
