from backend.rag.rules import answer_from_uploads

PASSAGES = [
    {"filename": "pump.pdf", "page_number": 17, "text": "The warranty lasts 24 months. [2] It is blue."},
    {"filename": "notes.txt", "text": "Lunch is at noon."},
]


def test_files_are_quoted_with_their_name_and_page():
    answer = answer_from_uploads("How long does the warranty last?", PASSAGES)
    assert answer == "Your files say:\n\n“The warranty lasts 24 months.” (pump.pdf, page 17)"


def test_a_file_without_pages_is_named_alone_in_the_language_of_the_question():
    assert answer_from_uploads("When is lunch?", PASSAGES) == "Your files say:\n\n“Lunch is at noon.” (notes.txt)"
    chinese = [{"filename": "泵.pdf", "page_number": 3, "text": "泵的保修期为24个月。"}]
    assert answer_from_uploads("泵的保修期多长？", chinese) == (
        "您上传的文件中的相关内容：\n\n“泵的保修期为24个月。” (泵.pdf，第 3 页)"
    )


def test_what_does_not_match_is_no_answer():
    assert answer_from_uploads("Who founded Rome?", PASSAGES) is None
    assert answer_from_uploads("Why?", []) is None


def test_a_name_cannot_pass_for_a_citation():
    answer = answer_from_uploads("When is lunch?", [{"filename": "[1] `x", "text": "Lunch is at noon."}])
    assert answer is not None
    assert "[1]" not in answer
    assert "`" not in answer
