package cli

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// hostile is a text that a user could set as a version's message, or write to a log. It sets the title of a
// terminal, clears it, reverses text, and is long and not Latin.
var hostile = "日本\x1b]0;PWNED\x07\x1b[2J\u009b31m\u202etxt.exe\u2066\r\x1b[31mred\x1b[0m\x7f" + strings.Repeat("語👩‍👩‍👧", 30) + "\r\nsecond\tline"

// fakeServer is a control plane that answers every call. All its texts are hostile.
type fakeServer struct {
	*httptest.Server

	mu sync.Mutex // a command may end before its last call is answered
	// watch changes the states that WatchApp sends.
	watch func(*windlassv1.WatchAppResponse)
	// answers change the answers of methods, by name.
	answers map[string]func(proto.Message)
	// refuses means that every call is refused.
	refuses bool
}

// change changes the fields of the server.
func (s *fakeServer) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// answerLink answers the only call that is not an RPC.
func (s *fakeServer) answerLink(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write(refusal())
		return
	}
	_, _ = io.WriteString(w, `{"link":"wll_x","expiresInMs":3600000}`)
}

func newFakeServer(t *testing.T) *fakeServer {
	s := &fakeServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ui/link" {
			s.answerLink(w)
			return
		}
		method, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(r.URL.Path, "/"), "/", ".")))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		m := method.(protoreflect.MethodDescriptor) //nolint:forcetypeassert // a test
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.IsStreamingServer() {
			s.stream(w, m)
			return
		}
		if s.refuses {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write(refusal())
			return
		}
		answer := dynamicpb.NewMessage(m.Output())
		fillMessage(answer, 0)
		if change := s.answers[string(m.Name())]; change != nil {
			change(answer)
		}
		data, err := proto.Marshal(answer)
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/proto")
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return s
}

func refusal() []byte {
	data, err := json.Marshal(map[string]string{"code": "permission_denied", "message": hostile})
	if err != nil {
		panic(err)
	}
	return data
}

// stream sends two states of an app. Then it ends, like the stream of a control plane that stops.
func (s *fakeServer) stream(w http.ResponseWriter, m protoreflect.MethodDescriptor) {
	w.Header().Set("Content-Type", "application/connect+proto")
	send := func(flags byte, data []byte) {
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))), data...))
	}
	if s.refuses {
		send(2, append(append([]byte(`{"error": `), refusal()...), '}'))
		return
	}
	if m.Name() == "FollowLogs" {
		send(0, logsAnswer())
		send(2, []byte("{}"))
		return
	}
	if m.Name() == "WatchSeries" {
		r := &windlassv1.WatchSeriesResponse{}
		fillMessage(r.ProtoReflect(), 0)
		r.RemovedRegions = nil
		data, err := proto.Marshal(r)
		if err != nil {
			panic(err)
		}
		send(0, data)
		send(2, []byte("{}"))
		return
	}
	if m.Name() != "WatchApp" {
		panic(m.FullName())
	}
	send(0, s.appState())
	send(0, s.appState())
	send(2, []byte("{}"))
}

// appState returns a state of an app, as WatchApp sends it.
func (s *fakeServer) appState() []byte {
	r := &windlassv1.WatchAppResponse{}
	fillMessage(r.ProtoReflect(), 0)
	r.AskedRollout, r.App.LiveDeploymentId = nil, r.Deployments[0].Id
	r.Deployments[0].Regions[0].Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	if s.watch != nil {
		s.watch(r)
	}
	data, err := proto.Marshal(r)
	if err != nil {
		panic(err)
	}
	return data
}

// fillMessage sets every field.
func fillMessage(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Name() == "next", depth > 6: // there is no next page
		case f.Name() == "workspace_name":
			m.Set(f, protoreflect.ValueOfString("search"))
		case f.IsMap():
			if f.MapValue().Message() == nil && f.MapKey().Kind() == protoreflect.StringKind {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString(hostile).MapKey(), fillValue(f.MapValue()))
			}
		case f.IsList() && f.Message() != nil:
			fillMessage(m.Mutable(f).List().AppendMutable().Message(), depth+1)
		case f.IsList():
			m.Mutable(f).List().Append(fillValue(f))
		case f.Message() != nil:
			fillMessage(m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, fillValue(f))
		}
	}
}

// fillValue returns a value for a field.
func fillValue(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(hostile)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(hostile))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(2)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(2)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(2)
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		for i := range values.Len() {
			for _, good := range []string{"_SERVING", "_SUCCEEDED", "EFFECT_NEW_VERSION"} {
				if strings.HasSuffix(string(values.Get(i).Name()), good) {
					return protoreflect.ValueOfEnum(values.Get(i).Number())
				}
			}
		}
		return protoreflect.ValueOfEnum(values.Get(1).Number())
	default:
		return f.Default()
	}
}

// logsAnswer returns an answer of FollowLogs.
func logsAnswer() []byte {
	data, err := proto.Marshal(&windlassv1.FollowLogsResponse{
		Notes: []*windlassv1.LogNote{
			{Kind: windlassv1.LogNote_KIND_BEGAN, Instance: "ins_1", About: &windlassv1.Instance{Id: "ins_1", Version: 3, Region: hostile, Role: "main"}},
			{Kind: windlassv1.LogNote_KIND_LOST, Instance: "ins_1", Lines: 7, Message: "7 lines are missing" + hostile},
		},
		Lines: []*windlassv1.LogLine{{Instance: "ins_1", At: 1, Text: hostile}},
	})
	if err != nil {
		panic(err)
	}
	return data
}
