package api

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// stretch is the number of PBKDF2 rounds, which make it slow to guess a secret from the hash of a request. The hash
// is only kept for a day.
const stretch = 10_000

// requestHash returns a hash of the request without its idempotency key, which is equal for a repeated request.
// Fields that the schema marks as secret are stretched first, because the hash is stored.
func requestHash(procedure string, req request) ([]byte, error) {
	m := proto.Clone(req).ProtoReflect()
	m.Clear(m.Descriptor().Fields().ByName("mutation"))
	salt := []byte(req.GetMutation().GetIdempotencyKey())
	var failed error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if isSecret(f) && f.Kind() == protoreflect.StringKind && !f.IsList() {
			sum, err := pbkdf2.Key(sha256.New, v.String(), salt, stretch, sha256.Size)
			if err != nil {
				failed = fmt.Errorf("hash request: %w", err)
				return false
			}
			m.Set(f, protoreflect.ValueOfString(hex.EncodeToString(sum)))
		}
		return true
	})
	if failed != nil {
		return nil, failed
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
	if err != nil {
		return nil, fmt.Errorf("hash request: %w", err)
	}
	sum := sha256.Sum256(append([]byte(procedure+"\x00"), body...))
	return sum[:], nil
}

// auditJSON returns a resource in the form of the API, in which fields that the schema marks as secret are replaced.
// The API shows no secret field today. This protects fields that are added later.
func auditJSON(m proto.Message) (string, error) {
	if m == nil || !m.ProtoReflect().IsValid() {
		return "", nil
	}
	redacted := proto.Clone(m)
	redactSecrets(redacted.ProtoReflect())
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(redacted)
	if err != nil {
		return "", fmt.Errorf("encode for audit: %w", err)
	}
	return string(b), nil
}

// redactSecrets replaces values of secret fields, at any depth.
func redactSecrets(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case isSecret(f) && f.Kind() == protoreflect.StringKind && f.Cardinality() != protoreflect.Repeated:
			m.Set(f, protoreflect.ValueOfString("[redacted]"))
		case isSecret(f):
			m.Clear(f)
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					redactSecrets(v.Message())
					return true
				})
			}
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				redactSecrets(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			redactSecrets(v.Message())
		}
		return true
	})
}

func isSecret(f protoreflect.FieldDescriptor) bool {
	options, ok := f.Options().(*descriptorpb.FieldOptions)
	return ok && options.GetDebugRedact()
}
