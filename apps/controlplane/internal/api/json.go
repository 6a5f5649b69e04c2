package api

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON refuses fields that the schema does not have. Connect's own codec drops them, so that a spec with the
// misspelt field "replica" would run with the default, without an error. People write JSON. Newer programs send
// binary messages, in which unknown fields are allowed.
func strictJSON() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(jsonCodec{"json"}), connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	)
}

type jsonCodec struct{ name string }

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (c jsonCodec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode %T: not a message", v)
	}
	return protojson.Marshal(m)
}

// Unmarshal implements connect.Codec. The author of the JSON reads its errors.
func (c jsonCodec) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode %T: not a message", v)
	}
	if len(data) == 0 {
		return errors.New("the body is empty: send a JSON object, at least {}")
	}
	if err := protojson.Unmarshal(data, m); err != nil {
		// The library sometimes puts a no-break space after "proto:", so that programs do not depend on its text.
		text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
		return errors.New(strings.TrimPrefix(text, "proto: "))
	}
	return nil
}
