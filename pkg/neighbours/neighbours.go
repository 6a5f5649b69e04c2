// Package neighbours describes in which other regions the apps of a region are ready. The control plane sends this
// picture to the region's agent, and the agent sends it to the region's gateways. First they get the whole picture,
// and then only its changes.
package neighbours

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// maxFrame is the maximum size of a frame in bytes.
const maxFrame = 256 << 10

// Picture is the picture of one region. It is immutable. Nil means that it is not known.
//
// It contains the apps of workspaces that may use the region, if their routing policy hands requests over to other
// regions. An app has at most 51 hosts (its own and its domains), and at most 32 regions, like a deployment. With a URL
// of 512 bytes for each region, that is 32 KiB. An app with one host and two regions takes a few hundred bytes.
type Picture struct {
	// Region is the name of this region.
	Region string
	// Apps has the apps by id.
	Apps map[string]*gatewayv1.AppNeighbours
}

// Since returns the frames that turn the picture old into p. It returns no frames if both are equal. If old is nil, it
// returns the whole of p, even if p has no apps, because a new receiver may hold another picture.
func (p *Picture) Since(old *Picture) []*gatewayv1.Neighbours {
	if p == old {
		return nil
	}
	whole := old == nil || p == nil || p.Region != old.Region
	var changed []*gatewayv1.AppNeighbours
	if p != nil {
		for _, id := range slices.Sorted(maps.Keys(p.Apps)) {
			if whole || !proto.Equal(p.Apps[id], old.Apps[id]) {
				changed = append(changed, p.Apps[id])
			}
		}
	}
	if !whole {
		for _, id := range slices.Sorted(maps.Keys(old.Apps)) {
			if p.Apps[id] == nil {
				changed = append(changed, &gatewayv1.AppNeighbours{AppId: id})
			}
		}
		if len(changed) == 0 {
			return nil
		}
	}
	return p.framesFor(whole, changed)
}

func (p *Picture) framesFor(whole bool, apps []*gatewayv1.AppNeighbours) []*gatewayv1.Neighbours {
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

// Whole returns the picture as one message, for a file.
func (p *Picture) Whole() *gatewayv1.Neighbours {
	out := &gatewayv1.Neighbours{Region: p.Region, Whole: true}
	for _, id := range slices.Sorted(maps.Keys(p.Apps)) {
		out.Apps = append(out.Apps, p.Apps[id])
	}
	return out
}

// With returns the picture after a frame.
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
