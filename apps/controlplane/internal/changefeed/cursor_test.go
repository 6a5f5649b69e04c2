package changefeed

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func TestCursor_FramesHaveNoGapAndEndInTheFinalState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			log   []model.Change
			state = map[Key]int64{} // newest revision by key
			chain = Genesis()
		)
		write := func() {
			key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
			rev := int64(len(log) + 1)
			chain = Chain(chain, key)
			log = append(log, model.Change{Revision: rev, Kind: model.KindDeployment, Key: key, Chain: chain})
			state[Key{model.KindDeployment, key}] = rev
		}
		for range rapid.IntRange(0, 10).Draw(t, "before") {
			write()
		}

		// The stream subscribes here, and reads its snapshot after further writes.
		published := int64(len(log))
		c := NewCursor(Position{})
		agent := map[Key]int64{}
		var closed int64 = -1
		publish := func() {
			next := log[published:]
			if len(next) == 0 {
				return
			}
			n := rapid.IntRange(1, len(next)).Draw(t, "publish")
			last := next[n-1]
			c.Mark(next[:n], Position{Epoch: 1, Revision: last.Revision, Chain: last.Chain})
			published += int64(n)
		}
		for range rapid.IntRange(0, 5).Draw(t, "between") {
			write()
			if rapid.Bool().Draw(t, "early") {
				publish()
			}
		}
		maps.Copy(agent, state)
		closed = int64(len(log))
		c.Sent(Position{Epoch: 1, Revision: closed, Chain: chain})

		take := func() {
			b, ok := c.Take()
			if !ok {
				return
			}
			require.Equal(t, closed, b.After, "a frame starts where the previous frame ended")
			require.GreaterOrEqual(t, b.Upto.Revision, b.After)
			for _, k := range b.Keys {
				agent[k] = state[k]
			}
			closed = b.Upto.Revision
			for k, rev := range state {
				if rev <= closed {
					require.Equal(t, rev, agent[k], "%v changed at %d and frame closed %d", k, rev, closed)
				}
			}
		}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				write()
			case 1:
				publish()
			case 2:
				take()
			}
		}
		for published < int64(len(log)) {
			publish()
		}
		take()
		require.True(t, c.Idle())
		require.Equal(t, state, agent)
	})
}

func TestJudge(t *testing.T) {
	ours := []byte("ours")
	head := model.Head{Epoch: 2, Revision: 10}
	for _, tc := range []struct {
		name    string
		agent   Position
		chainAt []byte
		want    Resume
	}{
		{"an agent with nothing gets a snapshot", Position{}, nil, Snapshot},
		{"an agent in the database's history continues", Position{2, 7, ours}, ours, Deltas},
		{"an agent at the head continues", Position{2, 10, ours}, ours, Deltas},
		{"an agent of a later epoch is a fork", Position{3, 1, ours}, ours, Fork},
		{"an agent ahead of the head is a fork", Position{2, 11, ours}, nil, Fork},
		{"an agent with another history is a fork", Position{2, 7, []byte("theirs")}, ours, Fork},
		{"an agent that missed an epoch gets a snapshot", Position{1, 7, ours}, ours, Snapshot},
		{"an agent whose revision was compacted gets a snapshot", Position{2, 7, ours}, nil, Snapshot},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, Judge(tc.agent, head, tc.chainAt))
		})
	}
}
