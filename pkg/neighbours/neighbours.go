// Package neighbours is the picture of where else the apps of a region are ready. It passes from
// the control plane by the region's agent to its gateways: whole at first, and then what has
// changed of it.
package neighbours

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// maxFrame is what a frame is kept below, in bytes.
const maxFrame = 256 << 10

// Picture is what a region is told. It is never changed: what follows is another one. Nil is
// one that is not known.
//
// It has the apps of the workspaces that may use the region whose routing policy crosses regions,
// and no others. Each has 51 hosts at the most, its own and its domains, and as many regions as a
// deployment may have, 32, with a URL of 512 bytes each: 32 KiB, and a few hundred bytes with one
// host and two regions.
type Picture struct {
	// Region is this one, as people name it.
	Region string
	// Apps by id.
	Apps map[string]*gatewayv1.AppNeighbours
}

// Since is what makes p of was, in frames: nothing if they are the same, and all of p where was
// is nil, for who comes anew may hold an older one. So one without apps is told then, too.
func (p *Picture) Since(was *Picture) []*gatewayv1.Neighbours {
	if p == was {
		return nil
	}
	whole := was == nil || p == nil || p.Region != was.Region
	var changed []*gatewayv1.AppNeighbours
	if p != nil {
		for _, id := range slices.Sorted(maps.Keys(p.Apps)) {
			if whole || !proto.Equal(p.Apps[id], was.Apps[id]) {
				changed = append(changed, p.Apps[id])
			}
		}
	}
	if !whole {
		for _, id := range slices.Sorted(maps.Keys(was.Apps)) {
			if p.Apps[id] == nil {
				changed = append(changed, &gatewayv1.AppNeighbours{AppId: id})
			}
		}
		if len(changed) == 0 {
			return nil
		}
	}
	return p.frames(whole, changed)
}

func (p *Picture) frames(whole bool, apps []*gatewayv1.AppNeighbours) []*gatewayv1.Neighbours {
	region := ""
	if p != nil {
		region = p.Region
	}
	out := []*gatewayv1.Neighbours{{Region: region, Whole: whole}}
	size := 0
	for _, a := range apps {
		n := proto.Size(a)
		if size > 0 && size+n > maxFrame {
			out = append(out, &gatewayv1.Neighbours{Region: region})
			size = 0
		}
		last := out[len(out)-1]
		last.Apps = append(last.Apps, a)
		size += n
	}
	return out
}

// Whole is the picture as one message, for a file.
func (p *Picture) Whole() *gatewayv1.Neighbours {
	out := &gatewayv1.Neighbours{Region: p.Region, Whole: true}
	for _, id := range slices.Sorted(maps.Keys(p.Apps)) {
		out.Apps = append(out.Apps, p.Apps[id])
	}
	return out
}

// With is the picture after a frame.
func (p *Picture) With(n *gatewayv1.Neighbours) *Picture {
	out := &Picture{Region: n.Region, Apps: map[string]*gatewayv1.AppNeighbours{}}
	if p != nil && !n.Whole {
		maps.Copy(out.Apps, p.Apps)
	}
	for _, a := range n.Apps {
		if len(a.Regions) == 0 && len(a.Hosts) == 0 {
			delete(out.Apps, a.AppId)
			continue
		}
		out.Apps[a.AppId] = a
	}
	return out
}
