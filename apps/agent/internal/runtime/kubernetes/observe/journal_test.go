package observe

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func event(uid types.UID, name, reason, message string, when int, count int32) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: uid},
		Reason:         reason, Message: message, Count: count, LastTimestamp: at(when),
	}
}

func TestJournal_KeepsTheNewestOfEachTopic(t *testing.T) {
	var j Journal
	require.True(t, j.Add(event("a", "1", "Unhealthy", "Readiness probe failed: x", 10, 1)))
	require.True(t, j.Add(event("a", "2", "Unhealthy", "Liveness probe failed: y", 11, 1)))
	require.True(t, j.Add(event("a", "1", "Unhealthy", "Readiness probe failed: x", 20, 2)))
	require.False(t, j.Add(event("a", "1", "Unhealthy", "Readiness probe failed: x", 20, 2)), "the same event again")
	require.False(t, j.Add(event("a", "0", "Unhealthy", "Readiness probe failed: old", 5, 1)), "an older event")
	require.False(t, j.Add(event("a", "3", "Pulled", "Successfully pulled image", 5, 1)))
	notes, edit, changed := j.read("a", 0)
	require.True(t, changed)
	require.Equal(t, []note{
		{topic: topicReadiness, text: "Readiness probe failed: x", at: at(20).Time, count: 2, source: "1"},
		{topic: topicLiveness, text: "Liveness probe failed: y", at: at(11).Time, count: 1, source: "2"},
	}, notes)
	_, _, changed = j.read("a", edit)
	require.False(t, changed)
	_, _, changed = j.read("b", 0)
	require.False(t, changed, "another pod")

	j.Forget("a")
	notes, now, changed := j.read("a", edit)
	require.True(t, changed)
	require.Zero(t, now)
	require.Empty(t, notes)
}

func TestJournal_AddsUpFailuresWithDifferentTexts(t *testing.T) {
	var j Journal
	for n, text := range []string{"x: i/o timeout", "x: 503 Service Unavailable", "x: EOF"} {
		j.Add(event("a", string(rune('0'+n)), "Failed", `Failed to pull image "x": `+text, n, 1))
	}
	notes, _, _ := j.read("a", 0)
	require.Len(t, notes, 1)
	require.EqualValues(t, 3, notes[0].count)
}

func TestJournal_KeepsOnlyKnownPods(t *testing.T) {
	var j Journal
	j.Add(event("a", "1", "Evicted", "x", 1, 1))
	j.Add(event("b", "2", "Evicted", "x", 1, 1))
	j.Keep(func(uid types.UID) bool { return uid == "b" })
	require.Len(t, j.pods, 1)
}
