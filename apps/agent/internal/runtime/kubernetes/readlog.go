package kubernetes

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

const (
	// readAhead limits what is read of a log after a given time: at most readAhead times the page's
	// limit. If the log has more, its end is read instead.
	readAhead = 4
	// floodLines is the number of lines that are read from the end.
	floodLines = 500
)

// ReadLog reads the container's log from its node, through the API server. A position is the node's
// time of a line, in ns, because a log can be read only from a time on. Lines are not counted.
func (r *Runtime) ReadLog(ctx context.Context, instanceID string, q runtime.LogQuery) (page runtime.LogPage, err error) {
	if err := r.awaitCaches(ctx); err != nil {
		return page, err
	}
	p, err := r.podOf(instanceID)
	if err != nil {
		return page, err
	}
	secrets, err := r.secretsOf(p)
	if err != nil {
		return page, err
	}
	lines, lostMore, err := podLog{r.api, p}.readLines(ctx, q)
	if err != nil {
		return page, err
	}
	if q.After != nil {
		page.Next = *q.After
	}
	if n := len(lines); n > 0 {
		page.Next = runtime.LogPosition{Offset: lines[n-1].At.UnixNano()}
	}
	if q.After == nil && q.Tail == 0 && q.Since.IsZero() {
		return page, nil // the query asks only for the position
	}
	page.LostMore = lostMore
	lines, cut := cutToNewest(lines, q.Limit)
	if q.After != nil {
		page.Lost = cut
	}
	// The lines are blanked as one text, because a value may have several lines.
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.Text
	}
	if len(lines) == 0 {
		return page, nil
	}
	for i, t := range strings.Split(secrets.Blank(strings.Join(texts, "\n")), "\n") {
		at := lines[min(i, len(lines)-1)].At
		page.Lines = append(page.Lines, runtime.LogLine{At: at, End: at.UnixNano(), Text: runtime.LogText(t)})
	}
	return page, nil
}

// cutToNewest returns the last lines, at most limit bytes but at least one line, and how many lines
// it cut.
func cutToNewest(lines []runtime.LogLine, limit int) (kept []runtime.LogLine, cut int64) {
	size := 0
	for i, line := range slices.Backward(lines) {
		if size += len(line.Text) + 1; size > limit && i < len(lines)-1 {
			return lines[i+1:], int64(i + 1)
		}
	}
	return lines, 0
}

// podLog is the log of one pod.
type podLog struct {
	api *access.API
	pod *corev1.Pod
}

// readLines returns the lines of q, and reports whether lines before them are missing.
func (l podLog) readLines(ctx context.Context, q runtime.LogQuery) (lines []runtime.LogLine, missing bool, err error) {
	var after time.Time
	options := corev1.PodLogOptions{}
	switch {
	case q.After != nil && q.After.Offset > 0:
		after = time.Unix(0, q.After.Offset)
	case !q.Since.IsZero():
		after = q.Since.Add(-time.Nanosecond)
	}
	if q.After == nil && q.Tail >= 0 && (q.Since.IsZero() || q.Tail > 0) {
		n := int64(max(q.Tail, 1))
		options.TailLines = &n
	}
	if !after.IsZero() {
		options.SinceTime = &metav1.Time{Time: after.Truncate(time.Second)}
	}
	if began := containerStart(l.pod); hasRestarted(l.pod) && (q.After != nil || !q.Since.IsZero()) && after.Before(began) {
		// The previous run may have written more lines. An error is ignored, because its log may be
		// gone.
		before := options
		before.Previous = true
		lines, missing, _ = l.linesAfter(ctx, before, after, q.Limit)
	}
	if n := len(lines); n > 0 {
		after = lines[n-1].At
	}
	more, missed, err := l.linesAfter(ctx, options, after, q.Limit)
	return append(lines, more...), missing || missed, err
}

// linesAfter returns the lines after a time, and reports whether lines before them are missing.
func (l podLog) linesAfter(ctx context.Context, options corev1.PodLogOptions, after time.Time, limit int) ([]runtime.LogLine, bool, error) {
	most := int64(readAhead * limit)
	if options.TailLines == nil {
		options.LimitBytes = &most
	}
	lines, size, err := l.read(ctx, options, after)
	if err != nil || options.TailLines != nil || size < most {
		return lines, false, err
	}
	// The log has more than was read, so the newest lines are read from its end.
	options.LimitBytes = nil
	n := int64(floodLines)
	options.TailLines = &n
	last := after
	if n := len(lines); n > 0 {
		last = lines[n-1].At
	}
	tail, _, err := l.read(ctx, options, after)
	return tail, len(tail) > 0 && tail[0].At.After(last), err
}

// read reads the log. It returns the lines after a time, and the number of bytes that it read.
func (l podLog) read(ctx context.Context, options corev1.PodLogOptions, after time.Time) (lines []runtime.LogLine, size int64, err error) {
	options.Timestamps = true
	text, size, err := l.api.LogText(ctx, l.pod, options)
	if access.IsNotFound(err) {
		return nil, 0, runtime.ErrUnknownInstance
	}
	return linesOf(string(text), after), size, err
}

// linesOf splits a log with times into lines. It leaves out a last line without a line break,
// because such a line was cut or is being written.
func linesOf(text string, after time.Time) []runtime.LogLine {
	var out []runtime.LogLine
	text = text[:strings.LastIndexByte(text, '\n')+1]
	for line := range strings.Lines(text) {
		stamp, said, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || !at.After(after) {
			continue
		}
		out = append(out, runtime.LogLine{At: at, Text: said})
	}
	return out
}

// containerStart returns when the running container started, or the zero time.
func containerStart(p *corev1.Pod) time.Time {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == render.ContainerName && c.State.Running != nil {
			return c.State.Running.StartedAt.Time
		}
	}
	return time.Time{}
}
