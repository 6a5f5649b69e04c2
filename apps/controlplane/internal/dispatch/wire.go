package dispatch

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/digest"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// wired is an encoded item. An item is encoded once, when it is read. The same bytes are hashed and sent, and frames
// contain them unchanged.
type wired struct {
	kind int32
	key  string
	// rank orders a snapshot: applies, then routes, then deletes, so that instances exist while a route names them.
	rank int
	// counts means that the item is part of the digest, with sum.
	counts bool
	sum    uint64
	bytes  []byte
}

const (
	rankApply = iota
	rankRoutes
	rankDelete
)

func byRank(a, b wired) int { return cmp.Compare(a.rank, b.rank) }

// sending is what the control plane adds to all items: the parent domain of preview hosts, and its limits for
// workspaces.
type sending struct {
	domain string
	limits model.Limits
}

// encodeAll encodes rows of the epoch.
func encodeAll(rows []model.DesiredItem, epoch int64, with sending) ([]wired, error) {
	items := make([]wired, 0, len(rows))
	var scratch []byte
	for i := range rows {
		it, err := encodeItem(&rows[i], epoch, with, &scratch)
		if err != nil {
			return nil, err
		}
		items = append(items, it)
	}
	return items, nil
}

// encodeItem encodes an item. scratch is a buffer that calls reuse.
//
// The content is encoded in two parts, and only the first part is hashed. This works because a protobuf decoder
// merges the parts of a message.
func encodeItem(it *model.DesiredItem, epoch int64, with sending, scratch *[]byte) (w wired, err error) {
	head := &agentv1.Item{Kind: agentv1.ItemKind(it.Kind), Key: it.Key, Epoch: epoch, Generation: it.Generation}
	w = wired{kind: int32(it.Kind), key: it.Key}
	var content, about proto.Message
	var field protowire.Number
	switch it.Kind {
	case model.KindDeployment:
		state := deploymentState(it)
		w.counts, w.rank = state.Action == agentv1.DeploymentState_ACTION_APPLY, rankApply
		if !w.counts {
			w.rank = rankDelete
		}
		content, about, field = state, describeDeployment(state, it, with), fieldDeployment
	case model.KindRoutes:
		routes, err := routesOf(it)
		if err != nil {
			return w, err
		}
		w.counts, w.rank = len(routes.Targets) > 0, rankRoutes
		content, field = routes, fieldRoutes
	default:
		return w, fmt.Errorf("item %s has unknown kind %d", it.Key, it.Kind)
	}

	data, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend((*scratch)[:0], content)
	if err != nil {
		return w, fmt.Errorf("encode item %s: %w", it.Key, err)
	}
	hash := sha256.Sum256(data)
	head.SpecHash = hash[:specHashSize]
	w.sum = digest.Hash(w.kind, it.Key, it.Generation, head.SpecHash)
	if about != nil {
		if data, err = (proto.MarshalOptions{}).MarshalAppend(data, about); err != nil {
			return w, fmt.Errorf("encode item %s: %w", it.Key, err)
		}
	}
	*scratch = data
	options := proto.MarshalOptions{}
	w.bytes = make([]byte, 0, options.Size(head)+protowire.SizeTag(field)+protowire.SizeBytes(len(data)))
	if w.bytes, err = options.MarshalAppend(w.bytes, head); err != nil {
		return w, fmt.Errorf("encode item %s: %w", it.Key, err)
	}
	w.bytes = protowire.AppendBytes(protowire.AppendTag(w.bytes, field, protowire.BytesType), data)
	return w, nil
}

// Numbers of the fields that are encoded here.
var (
	fieldDeployment = numberOf(&agentv1.Item{}, "deployment")
	fieldRoutes     = numberOf(&agentv1.Item{}, "routes")
	fieldItems      = numberOf(&agentv1.SnapshotItems{}, "items")
	fieldDelta      = numberOf(&agentv1.Delta{}, "items")
)

func numberOf(m proto.Message, name string) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByTextName(name).Number()
}

// carryItems puts encoded items into a repeated field of a message. It stores them as unknown fields, so that they
// are not encoded again.
func carryItems(m proto.Message, field protowire.Number, items []wired) {
	size := 0
	for i := range items {
		size += protowire.SizeTag(field) + protowire.SizeBytes(len(items[i].bytes))
	}
	raw := make([]byte, 0, size)
	for i := range items {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, field, protowire.BytesType), items[i].bytes)
	}
	m.ProtoReflect().SetUnknown(raw)
}

// sortByRank sorts items by rank, and keeps their order within a rank.
func sortByRank(items []wired) []wired {
	if !slices.IsSortedFunc(items, byRank) {
		slices.SortStableFunc(items, byRank)
	}
	return items
}

// updateIndex puts an item into the index, or removes it if it does not count.
func updateIndex(x *digest.Index, it *wired) {
	if it.counts {
		x.Put(it.kind, it.key, it.sum)
		return
	}
	x.Delete(it.kind, it.key)
}

// splitFrames cuts items into frames.
func splitFrames(items []wired) [][]wired {
	var out [][]wired
	start, size := 0, 0
	for i := range items {
		n := len(items[i].bytes)
		if i > start && (i-start >= maxFrameItems || size+n > maxFrameBytes) {
			out = append(out, items[start:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(items) {
		out = append(out, items[start:])
	}
	return out
}
