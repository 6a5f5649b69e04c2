package model

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestProgressEqual_ComparesEveryField fills a progress, changes each field of it and of all that it
// holds, one at a time, and wants a difference.
func TestProgressEqual_ComparesEveryField(t *testing.T) {
	filled := func() *Progress {
		p := &Progress{}
		fill(reflect.ValueOf(p).Elem(), 2)
		return p
	}
	p, same := filled(), filled()
	require.NotSame(t, p, same)
	require.True(t, p.Equal(same))
	fields := 0
	eachChange("Progress", reflect.ValueOf(p).Elem(), func(field string) {
		fields++
		require.False(t, p.Equal(same), "%s is not compared: name it in its type's equal", field)
		require.False(t, same.Equal(p), field)
	})
	require.True(t, p.Equal(same), "each change was undone")
	require.Greater(t, fields, 100)

	require.True(t, (*Progress)(nil).Equal(nil))
	require.False(t, p.Equal(nil))
	require.False(t, (*Progress)(nil).Equal(p))
}

var policyType = reflect.TypeFor[*windlassv1.RolloutPolicy]()

// fill gives every field a value, the same at each call. A progress within a progress is filled
// until depth is 0.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, depth)
		}
	case reflect.Pointer:
		switch {
		case v.Type() == policyType:
			v.Set(reflect.ValueOf(&windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING}))
		case v.Type() != reflect.TypeFor[*Progress]():
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth)
		case depth > 1:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth-1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]int32{"reg_1": 1}))
	default:
		v.Set(other(reflect.Zero(v.Type())))
	}
}

// eachChange changes each field below v in turn, calls changed with its name, and undoes the change.
func eachChange(name string, v reflect.Value, changed func(field string)) {
	set := func(how string, to reflect.Value) {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(to)
		changed(name + how)
		v.Set(was)
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachChange(name+"."+v.Type().Field(i).Name, v.Field(i), changed)
		}
	case reflect.Pointer:
		if v.IsNil() {
			return // a progress at the last depth
		}
		set(" nil", reflect.Zero(v.Type()))
		if v.Type() == policyType {
			set(" changed", reflect.ValueOf(&windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY}))
			return
		}
		eachChange(name, v.Elem(), changed)
	case reflect.Slice:
		set(" nil", reflect.Zero(v.Type()))
		set(" longer", reflect.AppendSlice(v.Slice3(0, 1, 1), v))
		eachChange(name+"[0]", v.Index(0), changed)
	case reflect.Map:
		set(" nil", reflect.Zero(v.Type()))
		for how, m := range map[string]map[string]int32{
			" empty": {}, " with another value": {"reg_1": 2}, " with another key": {"reg_2": 1}, " longer": {"reg_1": 1, "reg_2": 1},
		} {
			set(how, reflect.ValueOf(m))
		}
	default:
		set("", other(v))
	}
}

// other returns another value than v.
func other(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Bool:
		out.SetBool(!v.Bool())
	case reflect.String:
		out.SetString(v.String() + "x")
	case reflect.Int, reflect.Int32, reflect.Int64:
		out.SetInt(v.Int() + 1)
	case reflect.Float64:
		out.SetFloat(v.Float() + 1)
	default:
		panic(fmt.Sprintf("this test cannot change values of type %s yet: add the type here", v.Type()))
	}
	return out
}

// TestProgressEqual_TellsNilFromEmpty checks that nil and empty differ, because they differ in the stored form of some
// fields.
func TestProgressEqual_TellsNilFromEmpty(t *testing.T) {
	require.False(t, (&Progress{Waves: []WaveProgress{}}).Equal(&Progress{}))
	require.False(t, (&Progress{Sizes: map[string]int32{}}).Equal(&Progress{}))
	p := &Progress{Policy: &windlassv1.RolloutPolicy{}, OldSizes: map[string]int32{}}
	require.True(t, p.Equal(&Progress{Policy: proto.CloneOf(p.Policy), OldSizes: map[string]int32{}}))
}
