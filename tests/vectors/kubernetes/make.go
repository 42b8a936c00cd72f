// Command k8s makes what the tests of snapkv.rendering compare with, by Kubernetes' own code.
//
//	k8s fields [OLD]     the table of field numbers, snapkv/rendering/kubernetes_fields.txt, and
//	                     what the table in the file OLD has beyond it
//	k8s encode FILE...   for each YAML document one JSON line: its stored bytes and its JSON
//	k8s filled           the same of each kind in each version, every field of it filled
//	k8s decode           stored bytes on stdin, YAML on stdout: a decoder
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	quantity "k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// kinds has all kinds of k8s.io/api in all their versions.
var kinds = scheme.Scheme

// answers are groups whose objects the API server computes: it stores none.
var answers = []string{"authentication.k8s.io", "authorization.k8s.io"}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	switch os.Args[1] {
	case "fields":
		fields(os.Args[2:])
	case "encode":
		for _, name := range os.Args[2:] {
			encode(name)
		}
	case "filled":
		filled()
	case "decode":
		decode()
	}
}

func encode(name string) {
	text, err := os.ReadFile(name)
	must(err)
	codecs := serializer.NewCodecFactory(kinds)
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		object, kind, err := codecs.UniversalDeserializer().Decode(document, nil, nil)
		must(err)
		printLine(object, *kind)
	}
}

// printLine prints the stored bytes of an object, and its JSON.
func printLine(object runtime.Object, kind schema.GroupVersionKind) {
	codecs, stored := serializer.NewCodecFactory(kinds), protobuf.NewSerializer(kinds, kinds)
	var binary bytes.Buffer
	must(codecs.EncoderForVersion(stored, kind.GroupVersion()).Encode(object, &binary))
	object.GetObjectKind().SetGroupVersionKind(kind)
	tree, err := json.Marshal(object)
	must(err)
	line, err := json.Marshal(map[string]any{"stored": binary.Bytes(), "json": json.RawMessage(tree)})
	must(err)
	fmt.Println(string(line))
}

func filled() {
	known := kinds.AllKnownTypes()
	order := func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) }
	for _, kind := range slices.SortedFunc(maps.Keys(known), order) {
		if isStored(kind, known[kind]) {
			object := reflect.New(known[kind])
			fill(object.Elem(), "x", nil)
			printLine(object.Interface().(runtime.Object), kind)
		}
	}
}

// samples are values of types that are more than their fields.
var samples = []any{
	meta.Date(2026, 1, 31, 14, 0, 0, 0, time.UTC), meta.NewMicroTime(time.Unix(1769868000, 250_000_000)),
	quantity.MustParse("1500m"), intstr.FromString("25%"), meta.FieldsV1{Raw: []byte(`{"f:a":{}}`)},
	runtime.RawExtension{Raw: []byte(`{"kind":"K","n":1}`)}, meta.TypeMeta{},
}

// fill gives each field a value: texts their field's name, lists and maps one item.
func fill(value reflect.Value, name string, above []reflect.Type) {
	for _, sample := range samples {
		if reflect.TypeOf(sample) == value.Type() {
			value.Set(reflect.ValueOf(sample))
			return
		}
	}
	if slices.Contains(above, value.Type()) {
		return
	}
	switch value.Kind() {
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), name, above)
	case reflect.Struct:
		for i := range value.NumField() {
			fill(value.Field(i), value.Type().Field(i).Name, append(above, value.Type()))
		}
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			value.SetBytes([]byte("\x00\xff" + name))
			return
		}
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0), name, above)
	case reflect.Map:
		item := reflect.New(value.Type().Elem()).Elem()
		fill(item, name, above)
		value.Set(reflect.MakeMap(value.Type()))
		value.SetMapIndex(reflect.ValueOf("key").Convert(value.Type().Key()), item)
	case reflect.String:
		value.SetString(name)
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int32, reflect.Int64, reflect.Int:
		value.SetInt(-7)
	}
}

func decode() {
	stored, err := io.ReadAll(os.Stdin)
	must(err)
	object, kind, err := serializer.NewCodecFactory(kinds).UniversalDeserializer().Decode(stored, nil, nil)
	must(err)
	object.GetObjectKind().SetGroupVersionKind(*kind)
	text, err := yaml.Marshal(object)
	must(err)
	os.Stdout.Write(text)
}

func isStored(kind schema.GroupVersionKind, goType reflect.Type) bool {
	_, proto := reflect.PointerTo(goType).MethodByName("MarshalToSizedBuffer")
	_, hasMeta := goType.FieldByName("ObjectMeta")
	return proto && hasMeta && !slices.Contains(answers, kind.Group)
}

// table is what the file says: of each `apiVersion Kind` its message, of each message its fields.
type table struct {
	kinds    map[string]string
	messages map[string]map[int]string
}

// fields writes `apiVersion Kind message`, then for each message its fields. What only an older
// table has stays: numbers are never used again, so records of then stay readable.
func fields(older []string) {
	found := table{map[string]string{}, map[string]map[int]string{}}
	for kind, goType := range kinds.AllKnownTypes() {
		if isStored(kind, goType) {
			found.kinds[kind.GroupVersion().String()+" "+kind.Kind] = message(goType)
			found.add(goType)
		}
	}
	for _, name := range older {
		found.keep(name)
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, kind := range slices.Sorted(maps.Keys(found.kinds)) {
		fmt.Fprintln(out, kind, found.kinds[kind])
	}
	for _, name := range slices.Sorted(maps.Keys(found.messages)) {
		fmt.Fprintln(out, name)
		for _, number := range slices.Sorted(maps.Keys(found.messages[name])) {
			fmt.Fprintf(out, " %d %s\n", number, found.messages[name][number])
		}
	}
}

// add takes the fields of a message, and of all that it has.
func (t table) add(goType reflect.Type) {
	if t.messages[message(goType)] != nil {
		return
	}
	block := map[int]string{}
	t.messages[message(goType)] = block
	for i := range goType.NumField() {
		field := goType.Field(i)
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 2 || tag[1] == "" {
			continue
		}
		jsonTag := strings.Split(field.Tag.Get("json"), ",")
		name := jsonTag[0]
		if name == "" {
			name = "="
		}
		text, inner := typeText(field.Type, jsonTag[1:])
		number, err := strconv.Atoi(tag[1])
		must(err)
		block[number] = name + " " + text
		if inner != nil {
			t.add(inner)
		}
	}
}

// keep takes what an older table has beyond this one.
func (t table) keep(name string) {
	text, err := os.ReadFile(name)
	must(err)
	block := map[int]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		words := strings.Fields(line)
		switch len(words) {
		case 1:
			if t.messages[words[0]] == nil {
				t.messages[words[0]] = map[int]string{}
			}
			block = t.messages[words[0]]
		case 3:
			number, err := strconv.Atoi(words[0])
			kind := words[0] + " " + words[1]
			switch {
			case err != nil && t.kinds[kind] == "":
				t.kinds[kind] = words[2]
			case err == nil && block[number] == "":
				block[number] = words[1] + " " + words[2]
			case err == nil && !strings.HasPrefix(block[number], words[1]+" "):
				fmt.Fprintln(os.Stderr, "a number was used again:", line, "is", block[number])
			}
		}
	}
}

func message(t reflect.Type) string {
	path := strings.Split(strings.TrimPrefix(t.PkgPath(), "k8s.io/"), "/")
	return strings.Join(path[len(path)-min(2, len(path)):], ".") + "." + t.Name()
}

var special = map[string]string{
	"v1.Time": "time", "v1.MicroTime": "micro-time", "v1.FieldsV1": "json", "resource.Quantity": "quantity",
	"intstr.IntOrString": "int-or-string", "runtime.RawExtension": "json",
	"v1.Verbs": "", "v1.JSON": "json",
}

func typeText(t reflect.Type, options []string) (string, reflect.Type) {
	pointer := t.Kind() == reflect.Pointer
	if pointer {
		t = t.Elem()
	}
	if short, ok := special[t.String()]; ok && short != "" {
		return short, nil
	}
	omit := ""
	for _, option := range options {
		if option == "omitempty" && !pointer {
			omit = "?"
		}
	}
	switch t.Kind() {
	case reflect.String:
		return "string" + omit, nil
	case reflect.Bool:
		return "bool" + omit, nil
	case reflect.Int32, reflect.Int64, reflect.Int:
		return "int" + omit, nil
	case reflect.Float64:
		return "double" + omit, nil
	case reflect.Struct:
		return message(t), t
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes" + omit, nil
		}
		text, inner := typeText(t.Elem(), nil)
		if t.PkgPath() != "" && t.Name() != "" { // a named list is a message with one field
			return "items:" + text, inner
		}
		return "[]" + text, inner
	case reflect.Map:
		text, inner := typeText(t.Elem(), nil)
		return "{}" + text, inner
	}
	panic(t.String())
}
