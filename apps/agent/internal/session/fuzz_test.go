package session

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/report"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// stream encodes frames in the form that the fuzzer splits: each frame after its length.
func stream(f *testing.F, frames ...*agentv1.WatchResponse) []byte {
	var out []byte
	for _, frame := range frames {
		data, err := proto.Marshal(frame)
		if err != nil {
			f.Fatal(err)
		}
		out = append(append(out, byte(len(data)>>8), byte(len(data))), data...)
	}
	return out
}

// FuzzWatchFrames gives a session everything that decodes as frames. No frame may end the agent.
// These rules always hold:
//
//   - A refused frame changes nothing.
//   - Only the end of a snapshot removes a key.
//   - No key gets a lower (epoch, generation).
//   - Only frames with state move the cursor.
//   - After a crash, the inbox is as it was.
func FuzzWatchFrames(f *testing.F) {
	f.Add(recorded(f))
	f.Add(stream(f, append([]*agentv1.WatchResponse{hello()}, snapshot(5, item("dep_1"), item("dep_2"))...)...))
	f.Add(stream(f, append(append([]*agentv1.WatchResponse{hello()}, snapshot(5, item("dep_1"))...), delta(5, 6), delta(7, 8))...))
	f.Add(stream(f, append(snapshot(5), hello())...))
	torn := snapshot(5, item("dep_1"))
	f.Add(stream(f, hello(), torn[0], delta(0, 3), torn[1], torn[1], torn[2]))
	f.Add(stream(f, hello(),
		&agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Bookmark{Bookmark: &agentv1.Bookmark{Digest: 4}}},
		&agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Request{Request: &agentv1.Request{Id: "req_1", Kind: &agentv1.Request_Logs{Logs: &agentv1.LogsRequest{InstanceId: "ins_1"}}}}},
		&agentv1.WatchResponse{Frame: &agentv1.WatchResponse_GoAway{GoAway: &agentv1.GoAway{RetryAfter: durationpb.New(1000 * time.Hour)}}}))

	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "inbox.db")
		in, err := inbox.Open(path, true)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{
			Client: silentClient{}, Credentials: &Credentials{}, Inbox: in, Reporter: quietReporter{},
			Changed: func(...inbox.Key) {}, Instances: nothing{}, Traffic: func(*agentv1.TrafficRequest) *agentv1.TrafficResponse { return nil }, Series: func(*agentv1.SeriesRequest) *agentv1.SeriesResponse { return nil }, Log: slog.New(slog.DiscardHandler),
			Registerer: prometheus.NewRegistry(), Rand: func() float64 { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		fr := &frames{session: s, cancel: cancel, reporting: make(chan struct{}), slots: make(chan struct{}, maxAnswers)}
		before := in.Cursor()
		held := map[inbox.Key]*agentv1.Item{}
		for len(data) >= 2 {
			n := min(int(data[0])<<8|int(data[1]), len(data)-2)
			msg := &agentv1.WatchResponse{}
			err := proto.Unmarshal(data[2:2+n], msg)
			data = data[2+n:]
			if err != nil {
				continue
			}
			err = fr.handle(ctx, msg)
			now := in.Cursor()
			checkFrame(t, msg, err, held, in, before, now)
			before = now
			if err != nil {
				break
			}
		}
		cancel(nil)
		if fr.reporter {
			<-fr.reporting
		}
		fr.answers.Wait()
		if fr.retryAfter < 0 || fr.retryAfter > maxRetryAfter {
			t.Fatalf("the server asked for a delay of %s", fr.retryAfter)
		}
		sums := in.Sums()
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if in, err = inbox.Open(path, true); err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if again := in.Cursor(); !same(again, before) || in.Sums() != sums || len(in.Items()) != len(held) {
			t.Fatalf("the inbox had cursor %v and %d items, and after the restart %v and %d", before, len(held), again, len(in.Items()))
		}
		for k, was := range held {
			if again, _ := in.Get(k); !proto.Equal(was, again) {
				t.Fatalf("the item %v became %v by the restart", was, again)
			}
		}
	})
}

func same(a, b inbox.Cursor) bool {
	return a.Epoch == b.Epoch && a.Revision == b.Revision && string(a.Chain) == string(b.Chain)
}

// checkFrame compares the items before and after a frame. held has the items before the frame.
// checkFrame updates it.
func checkFrame(t *testing.T, msg *agentv1.WatchResponse, err error, held map[inbox.Key]*agentv1.Item, in *inbox.Inbox, before, now inbox.Cursor) {
	end, frame := msg.GetSnapshotEnd() != nil, msg.GetDelta()
	switch {
	case err != nil || !end && frame == nil:
		if !same(before, now) {
			t.Fatalf("%v (%v) moved the cursor from %v to %v", msg, err, before, now)
		}
	case frame != nil && (now.Epoch != before.Epoch || now.Revision < before.Revision):
		t.Fatalf("%v moved the cursor from %v to %v", msg, before, now)
	case now.Epoch < before.Epoch:
		t.Fatalf("a snapshot moved the cursor from %v to %v", before, now)
	}
	items := in.Items()
	present := make(map[inbox.Key]bool, len(items))
	for _, it := range items {
		k := inbox.Key{Kind: it.Kind, Name: it.Key}
		present[k] = true
		was := held[k]
		switch {
		case was == it:
			continue
		case err != nil:
			t.Fatalf("%v was refused (%v) and left %v", msg, err, it)
		case was != nil && (it.Epoch < was.Epoch || it.Epoch == was.Epoch && it.Generation < was.Generation):
			t.Fatalf("%v went from %v back to %v", k, was, it)
		}
		held[k] = it
	}
	for k, was := range held {
		if present[k] {
			continue
		}
		if err != nil || !end {
			t.Fatalf("%v (%v) lost %v", msg, err, was)
		}
		delete(held, k)
	}
}

// recorded returns the frames of a real stream.
func recorded(f *testing.F) []byte {
	file, err := os.Open("testdata/recorded/watch-1.binpb")
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	in := bufio.NewReader(file)
	var out []*agentv1.WatchResponse
	for {
		frame := &agentv1.WatchResponse{}
		switch err := protodelim.UnmarshalFrom(in, frame); {
		case errors.Is(err, io.EOF):
			return stream(f, out...)
		case err != nil:
			f.Fatal(err)
		}
		out = append(out, frame)
	}
}

type quietReporter struct{}

func (quietReporter) Run(ctx context.Context, _ report.Session) error {
	<-ctx.Done()
	return nil
}

func (quietReporter) Reported() int64 { return 0 }

func (quietReporter) Heard() {}

// silentClient accepts answers.
type silentClient struct{ Client }

func (silentClient) UploadLogs(context.Context, *agentv1.UploadLogsRequest) (*agentv1.UploadLogsResponse, error) {
	return &agentv1.UploadLogsResponse{}, nil
}
