import pytest

from backend.catalogue import say
from backend.chat.answer_filter import AnswerFilter
from backend.rag.rules.answer import MAX_QUOTE_CHARS, answer_from_passages, best_sentences
from backend.rag.rules.question import question_language

PASSAGES = [
    {"index": 1, "text": "Bananas are yellow. They grow in bunches."},
    {
        "index": 2,
        "text": "The pump is blue. The warranty of the pump lasts 24 months. Call the service line first.",
    },
    {"index": 3, "text": "水泵的保修期为二十四个月。水泵是蓝色的。"},
]


def test_the_matching_sentence_is_quoted_with_its_number():
    assert answer_from_passages("How long does the warranty last?", PASSAGES) == (
        "The documents say:\n\n“The warranty of the pump lasts 24 months.” [2]"
    )


def test_chinese_questions_get_a_chinese_lead_in():
    answer = answer_from_passages("保修期有多长？", PASSAGES)
    assert answer == "文档中的相关内容：\n\n“水泵的保修期为二十四个月。” [3]"


@pytest.mark.parametrize(
    ("question", "language"),
    [("Why?", "en"), ("为什么？", "zh"), ("ポンプは何色ですか", "en"), ("GPU 温度", "zh"), ("", "en")],
)
def test_question_language(question, language):
    assert question_language(question) == language


@pytest.mark.parametrize("question", ["Who wrote Hamlet?", "What is the?", "", "🙂", "{0.__class__} %s ${x}"])
def test_it_says_so_when_no_sentence_shares_a_content_term(question):
    assert answer_from_passages(question, PASSAGES) == say("extractive_nothing_found", "en")


def test_a_sentence_is_about_the_numbered_name_before_it_until_another_is_named():
    text = "Pump 4 stands in hall 5. It delivers 28 litres. Pump 5 stands in hall 6. It delivers 35 litres."
    answer = answer_from_passages("How many litres does pump 5 deliver?", [{"index": 1, "text": text}])
    first, *further = answer.removeprefix("The documents say:\n\n").split("\n\n")
    assert first == "“It delivers 35 litres.” [1]"
    assert not any("28 litres" in quote or "Pump 4" in quote for quote in further)


def test_one_common_word_of_a_long_question_is_not_enough():
    question = (
        "Which pump manufacturer sponsored the Danish national handball squad during Olympic qualification rounds?"
    )
    assert answer_from_passages(question, PASSAGES) == say("extractive_nothing_found", "en")


def test_a_wordy_question_still_finds_its_sentence():
    question = "Could you please tell me, for a report, how many months the warranty of the new pump series lasts?"
    assert "“The warranty of the pump lasts 24 months.” [2]" in answer_from_passages(question, PASSAGES)


def test_chinese_question_words_are_no_content():
    assert answer_from_passages("这是什么？", PASSAGES) == say("extractive_nothing_found", "zh")


def test_nothing_retrieved_and_nothing_looked_up_are_told_apart():
    assert answer_from_passages("hello", []) == say("extractive_nothing_found", "en")
    assert answer_from_passages("你好", None) == say("extractive_documents_only", "zh")


def test_j16_text_of_a_document_is_never_a_template():
    text = "The magic value is {0.__class__} {{7*7}} %s ${HOME}."
    assert answer_from_passages("magic value", [{"index": 1, "text": text}]).endswith(f"“{text}” [1]")


def test_a_bracketed_number_of_the_source_does_not_pass_for_a_citation():
    answer = answer_from_passages(
        "radium discovery", [{"index": 1, "text": "The discovery of radium[2] was in 1898 [ 12 ]."}]
    )
    assert answer.endswith("“The discovery of radium(2) was in 1898 (12).” [1]")


@pytest.mark.parametrize(
    ("source", "quoted"),
    [
        ("The lock is green [1, 3].", "The lock is green (1, 3)."),
        ("The lock is green [^1].", "The lock is green (^1)."),
        ("The lock is green [ID:1].", "The lock is green (ID:1)."),
        ("The lock is <think> green.", "The lock is ‹think› green."),
        ("The lock is </THINK> green.", "The lock is ‹/THINK› green."),
        ("The lock is ` green.", "The lock is ' green."),
        ("The lock is ``green` now.", "The lock is ''green' now."),
        ("The lock is `green` now.", "The lock is `green` now."),
    ],
)
def test_i07_nothing_in_a_source_steers_the_answer_that_quotes_it(source: str, quoted: str):
    answer = answer_from_passages("lock", [{"index": 1, "text": source}])
    assert answer.endswith(f"“{quoted}” [1]")
    shown = AnswerFilter(lambda number: number in {1, 3})
    assert shown.feed(answer) + shown.flush() == answer
    assert shown.cited == {1}


def test_lines_are_joined_and_long_sentences_cut():
    wrapped = answer_from_passages("pump colour", [{"index": 1, "text": "The pump has\n  a blue\tcolour."}])
    assert wrapped.endswith("“The pump has a blue colour.” [1]")
    chinese = answer_from_passages("水泵保修期", [{"index": 1, "text": "水泵的保\n  修期为，\n两年。"}])
    assert chinese.endswith("“水泵的保修期为，两年。” [1]")
    long = answer_from_passages("pump", [{"index": 1, "text": "pump " * 1000}])
    quote = long.split("“")[1].split("”")[0]
    assert len(quote) <= MAX_QUOTE_CHARS
    assert quote.endswith("…")


def test_at_most_three_sentences_best_first_each_once():
    text = "Pump manual. Pump pressure. Pump pressure limit. Pump pressure limit value. Pump pressure limit value."
    best = best_sentences("pump pressure limit value", [{"index": 1, "text": text}])
    assert best[0].text == "Pump pressure limit value."
    assert len(best) <= 3
    assert len({sentence.text for sentence in best}) == len(best)
    assert [sentence.score for sentence in best] == sorted((sentence.score for sentence in best), reverse=True)


def test_equal_sentences_are_quoted_from_the_better_passage():
    passages = [{"index": n, "text": "The valve opens at 3 bar."} for n in (1, 2)]
    assert [sentence.index for sentence in best_sentences("When does the valve open?", passages)] == [1]


def test_a_sentence_about_another_number_is_not_quoted():
    text = "Pump 119 is serviced after 221 hours. Pump 91 is serviced after 169 hours."
    answer = answer_from_passages("When is pump 119 serviced?", [{"index": 1, "text": text}])
    assert answer.endswith("“Pump 119 is serviced after 221 hours.” [1]")
    assert "169" not in answer


def test_the_parts_of_a_question_are_answered_apart_and_a_part_without_evidence_says_so():
    passages = [{"index": 1, "text": "The Alpha weighs 3 kg.", "for_questions": ["What is the weight of Alpha?"]}]
    answer = answer_from_passages("Compare the weight of Alpha and Beta", passages)
    assert answer.split("\n\n") == [
        "The documents say:",
        "**What is the weight of Alpha?**",
        "“The Alpha weighs 3 kg.” [1]",
        "**What is the weight of Beta?**",
        say("extractive_part_not_found", "en"),
    ]


def test_parts_that_a_model_planned_are_those_that_the_passages_name():
    passages = [
        {"index": 1, "text": "The Alpha weighs 3 kg.", "for_questions": ["Weight of Alpha?"]},
        {"index": 2, "text": "The Beta weighs 4 kg.", "for_questions": ["Weight of Beta?"]},
    ]
    answer = answer_from_passages("Alpha, Beta: weight", passages)
    assert "**Weight of Alpha?**\n\n“The Alpha weighs 3 kg.” [1]" in answer
    assert "**Weight of Beta?**\n\n“The Beta weighs 4 kg.” [2]" in answer


def test_one_document_answers_and_another_only_when_it_answers_differently():
    same = [{"index": n, "text": "The seal is kept for nine weeks.", "filename": f"{n}.md"} for n in (1, 2)]
    assert [one.index for one in best_sentences("How long is the seal kept?", same)] == [1]
    other = [same[0], {"index": 2, "text": "The seal is kept for two weeks.", "filename": "2.md"}]
    assert {one.index for one in best_sentences("How long is the seal kept?", other)} == {1, 2}


def test_the_measure_that_is_asked_for_leads_to_its_sentence():
    text = "The pump moves 40 litres. The pump weighs 3 kg."
    assert best_sentences("How heavy is the pump?", [{"index": 1, "text": text}])[0].text == "The pump weighs 3 kg."


def test_a_section_is_quoted_for_its_heading_and_no_heading_is():
    text = "# Plans\n\n## Starter\nThe fee is 19 euros.\n\n## Business\nThe fee is 89 euros."
    quoted = [one.text for one in best_sentences("What is the Starter?", [{"index": 1, "text": text}])]
    assert quoted == ["The fee is 19 euros."]
