package neighbours_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// An agent that applies all frames has the picture, no matter with which picture it began.
func TestPicture_FollowsFromItsFrames(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var told, has *neighbours.Picture
		for range 10 {
			next := draw(rnd)
			if next != nil && rnd.IntN(4) == 0 {
				told = nil // a new stream gets the whole picture
			}
			for _, frame := range next.Since(told) {
				data, err := proto.Marshal(frame)
				require.NoError(t, err)
				read := &gatewayv1.Neighbours{}
				require.NoError(t, proto.Unmarshal(data, read))
				has = has.With(read)
			}
			told = next
			same(t, next, has)
			require.Empty(t, next.Since(next))
		}
	}
}

func TestPicture_LargeComesInFrames(t *testing.T) {
	p := &neighbours.Picture{Region: "eu", Apps: map[string]*gatewayv1.AppNeighbours{}}
	for i := range 10_000 {
		p.Apps[fmt.Sprint(i)] = app(fmt.Sprint(i), "us", "asia", "africa")
	}
	frames := p.Since(nil)
	require.Greater(t, len(frames), 2)
	var has *neighbours.Picture
	for i, f := range frames {
		require.Equal(t, i == 0, f.Whole)
		require.Less(t, proto.Size(f), 300<<10)
		has = has.With(f)
	}
	same(t, p, has)
}

func TestPicture_EmptyIsSent(t *testing.T) {
	p := &neighbours.Picture{Region: "eu", Apps: map[string]*gatewayv1.AppNeighbours{"a": app("a", "us")}}
	frames := (*neighbours.Picture)(nil).Since(p)
	require.Len(t, frames, 1)
	require.Empty(t, p.With(frames[0]).Apps)

	// An empty picture is also sent to a new receiver, because it may hold an older picture.
	frames = (&neighbours.Picture{}).Since(nil)
	require.Len(t, frames, 1)
	require.Empty(t, p.With(frames[0]).Apps)
}

func draw(rnd *rand.Rand) *neighbours.Picture {
	if rnd.IntN(8) == 0 {
		return nil
	}
	p := &neighbours.Picture{Region: "eu", Apps: map[string]*gatewayv1.AppNeighbours{}}
	for i := range rnd.IntN(5) {
		id := fmt.Sprint("app", i)
		var regions []string
		for _, r := range []string{"us", "asia"} {
			if rnd.IntN(2) == 0 {
				regions = append(regions, r)
			}
		}
		p.Apps[id] = app(id, regions...)
	}
	return p
}

func app(id string, regions ...string) *gatewayv1.AppNeighbours {
	a := &gatewayv1.AppNeighbours{AppId: id}
	for _, r := range regions {
		a.Regions = append(a.Regions, &gatewayv1.Neighbour{Region: r, GatewayUrl: "https://" + r + ".example.com"})
	}
	return a
}

// same requires that both pictures are equal. Apps without regions and hosts count as missing.
func same(t *testing.T, want, got *neighbours.Picture) {
	t.Helper()
	n := 0
	if want != nil {
		for id, a := range want.Apps {
			if len(a.Regions) == 0 {
				continue
			}
			n++
			require.True(t, proto.Equal(a, got.Apps[id]), "%v, not %v", got.Apps[id], a)
		}
	}
	if got != nil {
		require.Len(t, got.Apps, n)
	}
}
