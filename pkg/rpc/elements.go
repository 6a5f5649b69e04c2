package rpc

import (
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// maxDepth is the depth of nested messages up to which elements are counted. Real messages are not nested so deep.
const maxDepth = 100

// shape has the fields of a message that are lists or messages, by number.
type shape struct {
	fields map[protowire.Number]fieldShape
}

type fieldShape struct {
	message *shape // nil for a scalar
	isList  bool
}

var shapes sync.Map // procedure -> *shape

// shapeOf returns the shape of the procedure's request, or nil if it is unknown.
func shapeOf(procedure string) *shape {
	if known, ok := shapes.Load(procedure); ok {
		return known.(*shape) //nolint:forcetypeassert // nothing else is stored
	}
	service, method, ok := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	if !ok {
		return nil
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	desc, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	m := desc.Methods().ByName(protoreflect.Name(method))
	if m == nil {
		return nil
	}
	s := makeShape(m.Input(), map[protoreflect.FullName]*shape{})
	shapes.Store(procedure, s)
	return s
}

// makeShape returns the shape of a message. known has the shapes of messages that the walk has already met, because
// messages can be recursive.
func makeShape(desc protoreflect.MessageDescriptor, known map[protoreflect.FullName]*shape) *shape {
	if s := known[desc.FullName()]; s != nil {
		return s
	}
	s := &shape{fields: make(map[protowire.Number]fieldShape, desc.Fields().Len())}
	known[desc.FullName()] = s
	for i := range desc.Fields().Len() {
		f := desc.Fields().Get(i)
		one := fieldShape{isList: f.IsList()}
		if f.Message() != nil { // also for a map, whose entries are messages
			one.message = makeShape(f.Message(), known)
		}
		if one.isList || one.message != nil {
			s.fields[f.Number()] = one
		}
	}
	return s
}

// countProto counts the elements of an encoded message, and stops above limit. It stops at a malformed byte,
// which the decoder will refuse.
func countProto(data []byte, s *shape, limit, depth int) (n int) {
	for len(data) > 0 && n <= limit {
		number, kind, length := protowire.ConsumeTag(data)
		if length < 0 {
			return n
		}
		data = data[length:]
		if kind != protowire.BytesType {
			if length = protowire.ConsumeFieldValue(number, kind, data); length < 0 {
				return n
			}
			data = data[length:]
			if s.fields[number].isList {
				n++
			}
			continue
		}
		value, length := protowire.ConsumeBytes(data)
		if length < 0 {
			return n
		}
		data = data[length:]
		field, known := s.fields[number]
		switch {
		case !known:
		case field.message == nil:
			// A text, or a packed list of numbers.
			n += 1 + len(value)/8
		default:
			n++
			if depth < maxDepth {
				n += countProto(value, field.message, limit-n, depth+1)
			}
		}
	}
	return n
}

// countJSON counts the elements of a JSON text, and stops above limit.
func countJSON(data []byte, limit int) (n int) {
	for i := 0; i < len(data) && n <= limit; i++ {
		switch data[i] {
		case '{', '[', ',':
			n++
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}
