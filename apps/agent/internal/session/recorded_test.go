package session

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

func TestStream_OfEarlierControlPlanesIsUnderstood(t *testing.T) {
	recordings, err := filepath.Glob("testdata/recorded/watch-*.binpb")
	require.NoError(t, err)
	require.NotEmpty(t, recordings)
	for _, path := range recordings {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, f.Close()) })
			a := setup(t, patience)
			w := a.watched()
			in := bufio.NewReader(f)
			var last *agentv1.Bookmark
			for {
				frame := &agentv1.WatchResponse{}
				err := protodelim.UnmarshalFrom(in, frame)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				w.send(t, frame)
				if b := frame.GetBookmark(); b != nil {
					last = b
				}
			}
			require.Eventually(t, func() bool { return a.in.Cursor().Revision == last.Revision }, patience, time.Millisecond)
			sums := a.in.Sums()
			require.Equal(t, last.Digest, sums.Total(), "the held items match the digest")
			for key, generation := range map[string]int64{"dep_1": 1, "dep_2": 2, "dep_3": 2} {
				item, ok := a.in.Get(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: key})
				require.True(t, ok, key)
				require.Equal(t, generation, item.Generation, key)
				require.Equal(t, key == "dep_3", inbox.IsDelete(item), key)
			}
		})
	}
}
