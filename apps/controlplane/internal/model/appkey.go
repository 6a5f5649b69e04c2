package model

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// AppKey is a key of an app, for requests at gateways.
type AppKey struct {
	AppID, Name, WorkspaceID string
	// Prefix is the beginning of its value, and Hash is the stored HashToken of it.
	Prefix    string
	Hash      []byte
	CreatedBy string
	CreatedAt int64
	ExpiresAt int64 // 0: never
}

// MaxAppKeys is how many keys an app may have.
const MaxAppKeys = 100

// RouteKey is the part of a key that is sent to regions.
type RouteKey struct {
	Name      string `json:"name"`
	Hash      []byte `json:"hash"`
	ExpiresAt int64  `json:"expiresAt,omitempty"`
}

// EncodeKeys returns the app's keys as Route.Keys holds them, nil for none.
func EncodeKeys(keys []AppKey) []byte {
	if len(keys) == 0 {
		return nil
	}
	out := make([]RouteKey, 0, len(keys))
	for _, k := range keys {
		out = append(out, RouteKey{Name: k.Name, Hash: k.Hash, ExpiresAt: k.ExpiresAt})
	}
	slices.SortFunc(out, func(a, b RouteKey) int { return strings.Compare(a.Name, b.Name) })
	b, err := json.Marshal(out)
	if err != nil { // texts, bytes and numbers always encode
		panic(err)
	}
	return b
}

// AppKeys decodes Keys.
func (r Route) AppKeys() (keys []RouteKey, err error) {
	if len(r.Keys) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(r.Keys, &keys); err != nil {
		return nil, fmt.Errorf("decode the keys of the route of %s in %s: %w", r.AppID, r.RegionID, err)
	}
	return keys, nil
}
