# Sources of the text half of the room (tokenizer, chat, stop); CMakeLists.txt includes this.
set(FG_MODEL_TEXT_SOURCES
    tokenizer.c detok.c vocab.c vocab_pair.c vocab_table.c merge.c least.c pretokenize.c pretokenize_deepseek.c unicode_class.c
    chat.c stop.c json_walk.c tool_parse.c think_parse.c)
