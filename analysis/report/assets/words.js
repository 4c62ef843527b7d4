// What is said of a lane, a step, a round: a list of short parts.

const OUTCOME_WORDS = {
  late: "wasted: late, ended by the server",
  lost: "wasted: the device disconnected",
  left: "wasted: the device left for good",
  battery: "wasted: the device's battery is flat",
  stopped: "wasted: cut off by the end of the run",
  memory: "wasted: the model does not fit into its memory",
};
const MARK_WORDS = ["arrives", "leaves for good", "its data shift", "it notices that its data have shifted", "moves to another group", "splits its data"];

/** Meaning of an outcome. A task that is open in a run that goes on is not wasted yet. */
function outcomeWords(timeline, outcome) {
  if (outcome === "stopped" && !timeline.header.is_done) return "not finished yet";
  if (outcome === "lost" && timeline.header.loses_edges) return `${OUTCOME_WORDS.lost}, or its edge server failed`;
  return OUTCOME_WORDS[outcome];
}

function describeStep(timeline, lane, i) {
  const { lanes, palette } = timeline;
  const outcomes = Object.keys(palette.outcomes);
  const step = lanes.nameOf(i), outcome = outcomes[lanes.outcome[i]];
  const begin = timeline.seconds(lanes.start[i]), length = timeline.seconds(lanes.end[i]) - begin;
  const parts = [
    `Device ${lanes.device[lane]}, ${step}`,
    `${showLength(length)} from ${showTime(begin, length / 20)} on`,
  ];
  const done = lanes.done[i], asked = lanes.asked[i];
  if (!Number.isNaN(done)) {
    if (step === "train" || step === "pre-training") parts.push(`${done} of ${asked} epochs`);
    else if (step === "evaluate") parts.push(`${done} models`);
    else parts.push(done === asked ? showSize(done) : `${showSize(done)} of ${showSize(asked)}`);
  }
  const where = [`task ${lanes.task[i]}`];
  if (lanes.round[i] >= 0) where.push(`${timeline.header.round_word} ${lanes.round[i]}`);
  if (lanes.group[i] >= 0) where.push(`group ${lanes.group[i]}`);
  parts.push(where.join(", "));
  const { path_lane: own, path_start: starts, path_end: ends } = lanes;
  const waits = own.some((at, k) => at === lane && starts[k] < lanes.end[i] && ends[k] > lanes.start[i]);
  if (waits) parts.push(`on the critical path of its ${timeline.header.round_word}`);
  if (outcome !== "done") parts.push(outcomeWords(timeline, outcome));
  return parts;
}

function showTasks(count) {
  return count === 1 ? "1 task" : `${count} tasks`;
}

function describeLane(timeline, lane) {
  const { lanes, palette } = timeline;
  const counts = new Map();
  for (let i = lanes.first[lane]; i < lanes.first[lane + 1]; i++) {
    if (lanes.isLast(i, lane)) counts.set(lanes.outcome[i], (counts.get(lanes.outcome[i]) ?? 0) + 1);
  }
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const outcomes = Object.keys(palette.outcomes);
  const name = (outcome) => (outcome === "stopped" && !timeline.header.is_done ? "not finished" : outcome);
  const ends = outcomes.map((outcome, k) => (counts.get(k) ? `${counts.get(k)} ${name(outcome)}` : "")).filter(Boolean).join(", ");
  const parts = [`Device ${lanes.device[lane]}`, `${showCount(lanes.speed[lane])} samples/s, ${showCount(lanes.samples[lane])} training samples`];
  parts.push(total ? `${showTasks(total)}: ${ends}` : timeline.header.is_done ? "it never worked" : "it has not worked so far");
  if (lanes.last_group[lane] >= 0) parts.push(`in group ${lanes.last_group[lane]} ${timeline.header.is_done ? "at the end" : "so far"}`);
  return parts;
}

const MOST_MESSAGES = 4; // messages at one time of which each is described

/** The messages of a lane that are under way at a time. */
function messagesAt(timeline, lane, time) {
  const { message_lane: own, message_start: starts, message_end: ends } = timeline.lanes, found = [];
  const slack = timeline.time(1.5) - timeline.time(0); // a short message is drawn as wide as this
  for (let at = lowerBound(own, lane); at < own.length && own[at] === lane; at++) {
    if (starts[at] <= time && time < Math.max(ends[at], starts[at] + slack)) found.push(at);
  }
  return found;
}

function describeMessages(timeline, lane, time) {
  const { lanes, header } = timeline, found = messagesAt(timeline, lane, time);
  const parts = found.slice(0, MOST_MESSAGES).map((at) => {
    const begin = timeline.seconds(lanes.message_start[at]), length = timeline.seconds(lanes.message_end[at]) - begin;
    const way = lanes.message_sent[at] ? "sends" : "receives", preposition = lanes.message_sent[at] ? "to" : "from";
    const cut = lanes.message_cut[at] ? ", cut short" : "";
    return `${way} ${showSize(lanes.message_bytes[at])} ${preposition} ${header.endpoints[lanes.message_other[at]]}: ${showLength(length)} from ${showTime(begin, length / 20)} on${cut}`;
  });
  if (found.length > parts.length) parts.push(`and ${found.length - parts.length} more messages`);
  return parts;
}

/** What a device does that carries out no step. */
function describeIdle(timeline, lane, time) {
  const { lanes, header } = timeline;
  if (messagesAt(timeline, lane, time).length) return "exchanges messages";
  if (time < lanes.arrival[lane]) return "it has not arrived yet";
  if (time >= lanes.departure[lane] && lanes.departure[lane] < header.end) return "it has left for good";
  if (lanes.isAway(lane, time)) return "it cannot be reached";
  return header.knows_away ? "idle" : "idle or disconnected";
}

function describeRound(timeline, at) {
  const { round_number: numbers, round_end: ends, round_deadline: deadlines, round_accuracy: accuracies } = timeline.lanes;
  const begin = timeline.seconds(at ? ends[at - 1] : 0), end = timeline.seconds(ends[at]);
  const word = timeline.header.round_word;
  const parts = [`${word[0].toUpperCase()}${word.slice(1)} ${numbers[at]}`, `${showLength(end - begin)} from ${showTime(begin, (end - begin) / 20)} on`];
  if (deadlines[at]) parts.push("its deadline was reached");
  parts.push(...describeWait(timeline, at ? ends[at - 1] : 0, ends[at]));
  if (!Number.isNaN(accuracies[at])) parts.push(`accuracy ${accuracies[at].toFixed(4)}`);
  return parts;
}

/** The step of the critical path that was the longest between two times. */
function describeWait(timeline, from, to) {
  const { lanes } = timeline, { path_lane: own, path_start: starts, path_end: ends } = lanes;
  const first = lowerBound(starts, from), last = lowerBound(starts, to);
  let longest = first;
  for (let at = first; at < last; at++) if (ends[at] - starts[at] > ends[longest] - starts[longest]) longest = at;
  if (longest >= last || own[longest] < 0) return [];
  const step = lanes.at(own[longest], (starts[longest] + ends[longest]) / 2, 0);
  const name = step < 0 ? "" : `, ${lanes.nameOf(step)}`;
  return [`it waited longest for device ${lanes.device[own[longest]]}${name}: ${showLength(timeline.seconds(ends[longest] - starts[longest]))}`];
}

function describeCurves(timeline, time) {
  const { curves, view, width } = timeline;
  const half = view.span / width / 2; // as much time as a pixel has
  const mean = (name) => curves[name].means(time - half, time + half, 1)[0];
  const useful = mean("useful"), wasted = mean("wasted");
  return [
    showTime(timeline.seconds(time), timeline.grain),
    `${showCount(useful + wasted)} devices at work, the work of ${showCount(wasted)} wasted`,
    timeline.header.without_server ? `between devices: ${showRate(mean("peer"))}`
      : `server's link: ${showRate(mean("down"))} down, ${showRate(mean("up"))} up`,
  ];
}

function describeMark(timeline, at) {
  const { mark_kind: kinds, mark_time: times } = timeline.lanes;
  return `${MARK_WORDS[kinds[at]]} at ${showTime(timeline.seconds(times[at]), timeline.grain)}`;
}

function describeLimit(timeline, at) {
  return `T, the deadline of a training, at ${showTime(timeline.seconds(timeline.lanes.limit_time[at]), timeline.grain)}`;
}
