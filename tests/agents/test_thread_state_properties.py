"""The laws of the two reducers, for any values."""

from hypothesis import given
from hypothesis import strategies as st

from backend.agents.thread_state import ViewedImageData, merge_artifacts, merge_viewed_images

paths = st.lists(st.sampled_from("abcdef"), max_size=8)
maybe_paths = st.none() | paths
image = st.builds(ViewedImageData, base64=st.sampled_from(["AA", "BB"]), mime_type=st.just("image/png"))
images = st.dictionaries(st.sampled_from("abc"), image, max_size=3)
maybe_images = st.none() | images


@given(maybe_paths)
def test_nothing_new_leaves_artifacts_as_they_are(existing):
    assert merge_artifacts(existing, None) == (existing or [])


@given(maybe_paths)
def test_artifacts_that_are_the_first_are_taken_as_they_come(new):
    assert merge_artifacts(None, new) == (new or [])


@given(paths, paths)
def test_artifacts_merge_idempotently(existing, new):
    once = merge_artifacts(existing, new)
    assert merge_artifacts(once, new) == once


@given(paths, paths)
def test_artifacts_keep_order_and_the_first_occurrence(existing, new):
    merged = merge_artifacts(existing, new)
    joined = [*existing, *new]
    assert len(set(merged)) == len(merged)
    assert set(merged) == set(joined)
    assert sorted(merged, key=joined.index) == merged


@given(maybe_paths, maybe_paths, paths)
def test_artifacts_are_associative_where_the_last_is_a_list(first, second, third):
    """Only ``None`` and a single list pass without being made distinct, so nothing else can differ."""
    left = merge_artifacts(merge_artifacts(first, second), third)
    right = merge_artifacts(first, merge_artifacts(second, third))
    assert list(dict.fromkeys(left)) == list(dict.fromkeys(right))


@given(maybe_images)
def test_nothing_new_leaves_images_as_they_are(existing):
    assert merge_viewed_images(existing, None) == (existing or {})


@given(maybe_images)
def test_an_empty_update_clears(existing):
    assert merge_viewed_images(existing, {}) == {}


@given(images, images.filter(bool))
def test_images_merge_and_the_new_one_wins(existing, new):
    merged = merge_viewed_images(existing, new)
    assert merged == {**existing, **new}
    assert merge_viewed_images(merged, new) == merged


@given(maybe_images, images.filter(bool), images.filter(bool))
def test_images_are_associative_where_nothing_clears(first, second, third):
    left = merge_viewed_images(merge_viewed_images(first, second), third)
    assert left == merge_viewed_images(first, merge_viewed_images(second, third))


@given(images.filter(bool), images.filter(bool))
def test_a_clear_in_between_forgets_what_was_before_it_and_nothing_after(first, third):
    cleared = merge_viewed_images(merge_viewed_images(first, {}), third)
    assert cleared == third


@given(paths, paths, images, images)
def test_reducers_leave_their_inputs_alone(first, second, third, fourth):
    before = ([*first], [*second], {**third}, {**fourth})
    merge_artifacts(first, second)
    merge_viewed_images(third, fourth)
    assert (first, second, third, fourth) == before
